//! What mb does when a request fails: retries, repairs, errors (§6 of the contract).

#[macro_use]
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::*;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::json;

const ECHO: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"echo hi"}"#);
const TOUCH: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"touch ran"}"#);

/// Runs one prompt against these replies.
fn ask(script: impl IntoIterator<Item = Reply>) -> (Server, Run) {
    let server = Server::start(script);
    let run = Place::new().run(&server, &["-"], "hello");
    (server, run)
}

/// Runs each case in a thread of its own, since many wait a second for their retry.
fn each<T: Sync>(cases: &[T], test: impl Fn(&T) + Sync) {
    thread::scope(|scope| cases.iter().for_each(|case| drop(scope.spawn(|| test(case)))));
}

fn retries(run: &Run) -> Vec<&str> {
    run.stderr.lines().filter(|line| line.starts_with("[retry ")).collect()
}

/// Runs one prompt for an https endpoint where this answers each connection.
fn ask_peer(peer: impl Fn(TcpStream) + Send + 'static) -> Run {
    let (place, endpoint) = (Place::new(), listen(peer));
    place.mb_alone(&["-", &endpoint]).stdin("hello").limit(20).run()
}

/// Answers each connection to a port; returns the setting of an https endpoint there.
fn listen(peer: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("endpoint=https://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || listener.incoming().flatten().for_each(peer));
    endpoint
}

/// Runs one prompt for an endpoint that only the proxy of this variable can reach.
fn through(place: &Place, variable: &str, proxy: &str) -> Mb {
    let mb = place.mb_alone(&["-", "endpoint=http://127.0.0.2:9/v1"]);
    mb.env(variable, proxy).stdin("hello").limit(20)
}

/// Asserts that a run failed at once, with an error that names this.
fn assert_fails_at_once(run: &Run, name: &str) {
    assert_eq!((run.status, retries(run).len()), (1, 0), "{run}");
    assert!(run.stderr.to_lowercase().contains(name), "an error that names {name}{run}");
}

/// Starts mb on this endpoint, waits for its first retry and interrupts it.
fn first_retry_of(endpoint: &str, timeout: u32) -> Run {
    let place = Place::new();
    place.write("model.cfg", format!("endpoint={endpoint}\ntimeout={timeout}\n"));
    let mut live = place.mb_alone(&["-"]).start();
    live.send("hello");
    live.close_stdin();
    live.wait_for_stderr("[retry 1/9 in 1s: ");
    live.signal(libc::SIGINT);
    live.finish()
}

#[test]
fn a_reply_that_keeps_talking_has_no_limit() {
    let word = delta(json!({"content": "on "}));
    let talk = (0..5).fold(Reply::sse(&[]), |reply, _| reply.send(&[&word]).pause(1000));
    let server = Server::start([talk.send(&[&finish("stop"), "[DONE]"])]);
    let place = Place::new();
    place.config(&server, "timeout=4"); // the reply takes 5 seconds, its silences one
    let run = place.run(&server, &["-"], "hello");
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("on on on on on"), "{run}");
}

// ---- What fails at once

#[test]
fn every_other_status_fails_at_once() {
    for status in [400, 401, 402, 403, 404, 405, 409, 413, 418, 422, 451, 499] {
        let (server, run) = ask([Reply::status(status, r#"{"error":{"message":"no way"}}"#)]);
        assert_eq!(run.status, 1, "{run}");
        let line = format!("API error: HTTP {status}: no way");
        assert!(run.stderr.lines().any(|l| l == line), "{run}");
        assert!(!run.stdout.contains("API error"), "{run}");
        assert_eq!((retries(&run).len(), server.requests().len()), (0, 1), "{run}");
    }
}

#[test]
fn a_redirect_is_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let moved = Reply::status(status, "").header("Location", "/elsewhere/chat/completions");
        let (server, run) = ask([moved]);
        assert_eq!(run.status, 1, "{run}");
        assert!(run.stderr.contains(&format!("API error: HTTP {status}: ")), "{run}");
        assert_eq!(server.requests().len(), 1, "{run}");
    }
}

#[test]
fn the_message_is_found_in_error_bodies_of_all_shapes() {
    for (body, message) in [
        (r#"{"error":{"message":"x","type":"y"}}"#, "x"),
        (r#"[{"error":{"message":"x"}}]"#, "x"),
        (r#"{"error":"model not found"}"#, "model not found"),
        (r#"{"message":"m"}"#, "m"),
        (r#"{"detail":"Not Found"}"#, "Not Found"),
        (r#"{"object":"error","message":"m","code":404}"#, "m"),
        ("\n{\n  \"error\": {\n    \"message\": \"x\"\n  }\n}\n", "x"),
        ("just text", "just text"),
        (r#"{"strange":1}"#, r#"{"strange":1}"#),
        (r#"{"error":null}"#, r#"{"error":null}"#),
        (r#"{"error":{"#, r#"{"error":{"#),
        (r#"["x"]"#, r#"["x"]"#),
        ("7", "7"),
    ] {
        let (_, run) = ask([Reply::status(404, body)]);
        assert_eq!(run.status, 1, "{run}");
        let line = format!("API error: HTTP 404: {message}");
        assert!(run.stderr.lines().any(|l| l == line), "{line}{run}");
    }
}

#[test]
fn an_error_without_a_body_shows_its_status() {
    let (server, run) = ask([Reply::status(404, "")]);
    assert_eq!(run.status, 1, "{run}");
    assert!(run.stderr.contains("API error: HTTP 404"), "{run}");
    assert_eq!(server.requests().len(), 1, "{run}");
}

#[test]
fn a_long_error_body_is_cut_after_500_characters() {
    let (_, run) = ask([Reply::status(404, &"é".repeat(600))]);
    assert_eq!(run.status, 1, "{run}");
    let line = format!("API error: HTTP 404: {}", "é".repeat(500));
    assert!(run.stderr.lines().any(|l| l == line), "{run}");
}

#[test]
fn an_error_text_cannot_control_the_terminal() {
    let message = json!({"error": {"message": "a\u{1b}[31mb\u{7}\u{202e}c\rd"}}).to_string();
    let (_, run) = ask([Reply::status(404, &message)]);
    assert!(run.stderr.contains("API error: HTTP 404: a[31mbcd"), "{run}");
    let (_, run) = ask([Reply::status(404, "a\u{1b}]0;title\u{7}b")]);
    assert!(run.stderr.contains("API error: HTTP 404: a]0;titleb"), "{run}");
}

#[test]
fn an_html_page_under_200_is_a_wrong_endpoint_and_fails_at_once() {
    let page = "\r\n \t<!DOCTYPE html>\n<html><title>Welcome</title></html>\n";
    for kind in ["text/html", "text/event-stream", "application/json"] {
        let (server, run) = ask([Reply::status(200, page).header("Content-Type", kind)]);
        assert_eq!(run.status, 1, "{run}");
        assert!(!run.stderr.trim().is_empty(), "{run}");
        assert_eq!((retries(&run).len(), server.requests().len()), (0, 1), "{run}");
    }
}

/// Plays a TLS server with a certificate that nobody has signed but itself. `tests/tls` has it: for
/// 127.0.0.1, from 2020 to 2120, made by openssl.
fn self_signed(mut stream: TcpStream) {
    const CERTIFICATE: &[u8] = include_bytes!("tls/certificate.pem");
    const KEY: &[u8] = include_bytes!("tls/key.pem");
    let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(chain, key).unwrap());
    let mut tls = rustls::ServerConnection::new(config).unwrap();
    let mut tls = rustls::Stream::new(&mut tls, &mut stream);
    let reply = json!({"choices": [{"message": {"content": "done"}}]}).to_string();
    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{reply}", reply.len());
    let _ = tls.read(&mut [0; 65536]).and_then(|_| tls.write_all(reply.as_bytes()));
}

#[test]
fn a_certificate_that_is_not_trusted_fails_at_once_and_the_host_is_named() {
    let run = ask_peer(self_signed);
    assert!(run.stderr.contains("API error: "), "{run}");
    assert_fails_at_once(&run, "127.0.0.1");
}

#[test]
fn a_server_that_does_not_speak_tls_fails_at_once_and_the_host_is_named() {
    let run = ask_peer(|mut stream| {
        let _ = stream.read(&mut [0; 65536]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    assert_fails_at_once(&run, "127.0.0.1");
}

#[test]
fn a_key_that_no_header_can_hold_fails_at_once_and_is_named() {
    for key in ["sk-\u{e9}", "sk-a\u{1}b", "\u{201c}sk-1\u{201d}"] {
        let (server, place) = (Server::start([]), Place::new());
        place.config(&server, &format!("api_key={key}"));
        let run = place.mb(&server, &["-"]).stdin("hello").limit(20).run();
        assert_fails_at_once(&run, "api_key");
        assert_eq!(server.requests().len(), 0, "{run}");
    }
}

#[test]
fn an_address_that_cannot_be_used_fails_at_once_and_is_named() {
    for host in ["exa mple.invalid", "[::1"] {
        let endpoint = format!("endpoint=http://{host}/v1");
        let run = Place::new().mb_alone(&["-", &endpoint]).stdin("hello").limit(20).run();
        let named = if run.stderr.contains("endpoint") { "endpoint" } else { host };
        assert_fails_at_once(&run, named);
    }
}

// ---- Errors under 200

#[test]
fn an_error_object_under_200_with_a_final_code_fails_at_once() {
    let body = r#"{"error":{"code":400,"message":"request exceeds context"}}"#;
    for reply in [
        Reply::status(200, body),
        Reply::status(200, body).header("Content-Type", "text/event-stream"),
        Reply::sse(&[body]),
        Reply::sse(&[body]).stall(),
        Reply::sse(&[&delta(json!({"content": "half"})), body, "[DONE]"]),
    ] {
        let (server, run) = ask([reply]);
        assert_eq!(run.status, 1, "{run}");
        assert!(run.stderr.contains("API error: HTTP 400: request exceeds context"), "{run}");
        assert_eq!(server.requests().len(), 1, "{run}");
    }
}

#[test]
fn a_null_error_is_none() {
    let chunk = |choice| json!({"error": null, "choices": [choice]}).to_string();
    let text = chunk(json!({"index": 0, "delta": {"content": "fine"}}));
    let end = chunk(json!({"index": 0, "delta": {}, "finish_reason": "stop"}));
    let whole = json!({"error": null, "choices": [{"message": {"content": "fine"}}]});
    for reply in [Reply::sse(&[&text, &end, "[DONE]"]), Reply::json(whole)] {
        let (_, run) = ask([reply]);
        assert_eq!(run.status, 0, "{run}");
        assert!(run.stdout.contains("fine"), "{run}");
    }
}

// ---- Repairs

const EMPTY: &str =
    r#"{"error":{"message":"Invalid assistant message: content or tool_calls must be set"}}"#;

#[test]
fn without_an_assistant_message_there_is_nothing_to_repair() {
    let (server, run) = ask([Reply::status(400, EMPTY)]);
    assert_eq!(run.status, 1, "{run}");
    assert!(run.stderr.contains("content or tool_calls must be set"), "{run}");
    assert_eq!(server.requests().len(), 1, "{run}");
}

/// A tool call with a thought before it, under this key.
fn thoughtful_call(key: &str) -> Reply {
    let function = json!({"name": ECHO.1, "arguments": ECHO.2});
    let call = json!({"index": 0, "id": "c1", "type": "function", "function": function});
    let both = delta(json!({key: "I think", "tool_calls": [call]}));
    Reply::sse(&[&both, &finish("tool_calls"), "[DONE]"])
}

#[test]
fn what_every_message_needs_is_never_left_out() {
    for key in ["role", "content", "tool_calls", "tool_call_id", "messages"] {
        let bad = Reply::status(400, &format!("messages.2.{key}: Extra inputs are not permitted"));
        let (server, run) = ask([thoughtful_call("reasoning_details"), bad]);
        assert_eq!((run.status, server.requests().len()), (1, 2), "{run}");
        assert!(run.stderr.contains(&format!("API error: HTTP 400: messages.2.{key}")), "{run}");
    }
}

#[test]
fn what_is_no_refused_key_is_no_repair() {
    for (status, text) in [
        (401, "temperature"),                      // another status
        (404, "temperature"),                      // another status
        (400, "the temperatures are too high"),    // not the whole word
        (400, "my_temperature is wrong"),          // not the whole word
        (400, "model not found"),                  // a key that every request needs
        (400, "messages: too long"),               // likewise
        (400, "this server cannot use tools"),     // likewise
        (400, "stream must be false"),             // likewise
        (400, "max_tokens is too large"),          // not in the request
        (400, "reasoning_content is unsupported"), // in no message
    ] {
        let (server, run) = ask([Reply::status(status, text)]);
        assert_eq!(run.status, 1, "{run}");
        assert!(run.stderr.contains(&format!("API error: HTTP {status}: {text}")), "{run}");
        assert_eq!(server.requests().len(), 1, "{run}");
    }
}

// ---- After a failure

#[test]
fn after_a_failed_turn_the_session_goes_on_and_the_prompt_stays() {
    let server = Server::start([Reply::status(401, "who are you"), Reply::text("done")]);
    let run = Place::new().run(&server, &[], "first\nsecond\n");
    assert!(run.stderr.contains("API error: HTTP 401: who are you"), "{run}");
    assert!(run.stdout.contains("done"), "{run}");
    let second = &server.requests()[1];
    assert_eq!(second.roles(), ["system", "user"], "{run}");
    assert_eq!(second.messages()[1]["content"], "first\n\nsecond", "{run}");
}

#[test]
fn a_connection_closed_between_two_turns_is_replaced_without_a_retry() {
    let server = Server::start([Reply::text("one").then_close(), Reply::text("two")]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("first\n");
    live.wait_for_stdout("one");
    server.wait_for_end(server.requests()[0].connection);
    live.send("second\n/quit\n");
    let run = live.finish();
    assert!(run.stdout.contains("two"), "{run}");
    assert_eq!(retries(&run).len(), 0, "{run}");
}

#[test]
fn a_server_that_closes_after_each_reply_is_no_failure() {
    let call = || Reply::calls(&[ECHO]).close();
    let (server, run) = ask([call(), call(), Reply::text("done").close()]);
    assert_eq!(run.status, 0, "{run}");
    assert_eq!((retries(&run).len(), server.requests().len()), (0, 3), "{run}");
}

#[test]
fn an_empty_error_beside_an_answer_is_none() {
    let message = json!({"role": "assistant", "content": "fine"});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let (server, run) = ask([Reply::json(json!({"error": "", "choices": [choice]}))]);
    assert_eq!((run.status, server.requests().len()), (0, 1), "{run}");
    assert!(run.stdout.contains("fine"), "{run}");
}

#[test]
fn an_error_body_that_breaks_off_or_is_no_utf8_still_gives_its_reason() {
    let head = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 99\r\n\r\n";
    let cut = Reply::raw(format!(r#"{head}{{"error":{{"message":"bad key"}}}}"#)).cut();
    let latin = Reply::raw(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 8\r\n\r\nbad caf\xe9");
    for (reply, reason) in [(cut, "bad key"), (latin, "bad caf\u{fffd}")] {
        let (server, run) = ask([reply]);
        assert_eq!((run.status, server.requests().len()), (1, 1), "{run}");
        assert!(run.stderr.contains(&format!("API error: HTTP 401: {reason}")), "{run}");
    }
}

// ---- What needs more than the core

mod needs_retries {
    use super::*;

    #[test]
    fn a_failed_request_is_sent_again_after_the_fibonacci_delays() {
        let overloaded = Reply::status(503, r#"{"error":{"message":"overloaded"}}"#);
        let (server, run) = ask([overloaded.clone(), overloaded, Reply::text("done")]);
        assert_eq!(run.status, 0, "{run}");
        let line = |n| format!("[retry {n}/9 in 1s: HTTP 503: overloaded]");
        assert_eq!(retries(&run), [line(1), line(2)], "{run}");
        let requests = server.requests();
        assert_eq!(requests.len(), 3, "{run}");
        assert!(requests[1].at - requests[0].at >= Duration::from_secs(1), "{run}");
        assert!(requests[2].at - requests[1].at >= Duration::from_secs(1), "{run}");
        assert_eq!(requests[2].body, requests[0].body, "{run}");
    }

    #[test]
    #[ignore = "takes 88 seconds"]
    fn after_the_ninth_retry_the_turn_fails() {
        let server = Server::start((0..10).map(|n| Reply::status(500 + n, "broken")));
        let run = Place::new().mb(&server, &["-"]).stdin("hello").limit(150).run();
        assert_eq!(run.status, 1, "{run}");
        let delays = [1, 1, 2, 3, 5, 8, 13, 21, 34];
        let lines: Vec<_> = (0..9)
            .map(|n| format!("[retry {}/9 in {}s: HTTP {}: broken]", n + 1, delays[n], 500 + n))
            .collect();
        assert_eq!(retries(&run), lines, "{run}");
        for (pair, delay) in server.requests().windows(2).zip(delays) {
            assert!(pair[1].at - pair[0].at >= Duration::from_secs(delay), "{run}");
        }
        assert!(run.stderr.contains("HTTP 509: broken"), "{run}");
    }

    #[test]
    fn the_statuses_that_may_pass_are_retried() {
        each(&[408, 429, 500, 501, 502, 503, 504, 524, 529, 599], |&status| {
            let (server, run) = ask([Reply::status(status, "wait a bit"), Reply::text("done")]);
            assert_eq!(run.status, 0, "{run}");
            assert_eq!(retries(&run), [format!("[retry 1/9 in 1s: HTTP {status}: wait a bit]")]);
            assert_eq!(server.requests().len(), 2, "{run}");
        });
    }

    #[test]
    fn each_request_has_all_nine_retries() {
        let busy = || Reply::status(503, "busy");
        let (_, run) = ask([busy(), Reply::calls(&[ECHO]), busy(), Reply::text("done")]);
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(retries(&run), ["[retry 1/9 in 1s: HTTP 503: busy]"; 2], "{run}");
    }

    #[test]
    fn a_reply_that_breaks_off_is_asked_for_again_and_nothing_of_it_is_kept() {
        let text = || Reply::sse(&[&delta(json!({"content": "half"}))]);
        let call = || {
            let function = json!({"name": TOUCH.1, "arguments": TOUCH.2});
            let call = json!({"index": 0, "id": "c1", "type": "function", "function": function});
            Reply::sse(&[&delta(json!({"tool_calls": [call]}))])
        };
        let json = r#"{"choices":[{"message":{"role":"assistant","content":"half"#;
        let cases = [
            text().cut(),
            text().with_length().cut(),
            text().close(),
            text().reset(),
            text(), // framed as whole, but without a finish reason or [DONE]
            call().cut(),
            call().with_length().cut(),
            call().close(),
            call().reset(),
            call(),
            text().send(&["data: {\"choices\":[{\"delta\":{\"content\":\"and"]).close(),
            Reply::status(200, json).cut(),
            Reply::status(200, json).close(),
            Reply::status(200, ""),
            Reply::status(200, "upstream connect error"),
            Reply::raw("").then_close(),
            Reply::raw("HTTP/1.1 200 OK\r\nContent-Ty").then_close(),
            Reply::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").then_close(),
        ];
        each(&cases, |reply| {
            let (server, place) =
                (Server::start([reply.clone(), Reply::text("done")]), Place::new());
            let run = place.run(&server, &["-"], "hello");
            assert_eq!(run.status, 0, "{run}");
            assert_eq!(retries(&run).len(), 1, "{run}");
            let requests = server.requests();
            assert_eq!(requests.len(), 2, "{run}");
            assert_eq!(requests[1].body, requests[0].body, "{run}");
            assert!(!place.path("ran").exists(), "{run}");
        });
    }

    #[test]
    fn silence_is_retried_after_the_timeout() {
        let said = || Reply::sse(&[&delta(json!({"content": "half"}))]);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
        let cases = [
            Reply::hang(),
            Reply::raw(head),
            said().stall(),
            said().with_length().stall(),
            Reply::status(500, "half of an error").stall(),
        ];
        each(&cases, |reply| {
            let server = Server::start([reply.clone(), Reply::text("done")]);
            let place = Place::new();
            place.config(&server, "timeout=1");
            let run = place.run(&server, &["-"], "hello");
            assert_eq!(run.status, 0, "{run}");
            assert_eq!(retries(&run).len(), 1, "{run}");
            assert_eq!(server.requests().len(), 2, "{run}");
        });
    }

    #[test]
    fn a_refused_connection_is_retried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let run = first_retry_of(&format!("http://{address}/v1"), 30);
        assert_eq!(run.status, 130, "{run}");
    }

    #[test]
    fn an_unknown_host_is_retried() {
        let run = first_retry_of("http://name.invalid/v1", 30);
        assert_eq!(run.status, 130, "{run}");
    }

    #[test]
    fn a_connection_that_does_not_come_about_is_retried_after_the_timeout() {
        // With a full queue of connections that nobody accepts, the kernel drops further ones.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(500));
        let _queue: Vec<TcpStream> = std::iter::from_fn(|| connect().ok()).collect();
        let run = first_retry_of(&format!("http://{address}/v1"), 1);
        assert_eq!(run.status, 130, "{run}");
    }

    #[test]
    fn a_tls_handshake_that_is_not_answered_is_retried_after_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let run = first_retry_of(&format!("https://{}/v1", listener.local_addr().unwrap()), 1);
        assert_eq!(run.status, 130, "{run}");
    }

    #[test]
    fn an_interrupt_ends_the_wait_and_nothing_more_is_sent() {
        each(&[(); 20], |()| {
            let server = Server::start([Reply::status(429, "slow down")]);
            let place = Place::new();
            let mut live = place.start(&server, &["-"]);
            live.send("hello");
            live.close_stdin();
            live.wait_for_stderr("[retry 1/9 in 1s: HTTP 429: slow down]");
            live.signal(libc::SIGINT);
            let run = live.finish();
            assert_eq!(run.status, 130, "{run}");
            assert!(run.stderr.contains("[interrupted]"), "{run}");
            assert_eq!(server.requests().len(), 1, "{run}");
        });
    }

    #[test]
    fn a_retry_after_that_is_shorter_or_no_number_changes_nothing() {
        each(&["0", "-5", "soon", ""], |value| {
            let slow = Reply::status(429, "slow down").header("Retry-After", value);
            let (_, run) = ask([slow, Reply::text("done")]);
            assert_eq!(retries(&run), ["[retry 1/9 in 1s: HTTP 429: slow down]"], "{run}");
        });
    }

    #[test]
    fn an_html_page_of_a_proxy_under_502_is_retried() {
        let page = Reply::status(502, "<html><h1>502 Bad Gateway</h1></html>");
        let (server, run) = ask([page, Reply::text("done")]);
        assert_eq!(run.status, 0, "{run}");
        let line = "[retry 1/9 in 1s: HTTP 502: <html><h1>502 Bad Gateway</h1></html>]";
        assert_eq!(retries(&run), [line], "{run}");
        assert_eq!(server.requests().len(), 2, "{run}");
    }

    #[test]
    fn an_error_object_under_200_counts_as_its_code() {
        let half = || Reply::sse(&[&delta(json!({"content": "half"}))]);
        let error = |code| json!({"error": {"code": code, "message": "m"}});
        let cases = [
            (json!(429), "429"),
            (json!(502), "502"),
            (json!("500"), "500"),
            (json!("rate_limit_exceeded"), "502"),
            (json!(null), "502"),
        ];
        each(&cases, |(code, status)| {
            let error = error(code.clone());
            let mut last = error.clone(); // a chunk like any other, but for its error
            last["choices"] =
                json!([{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]);
            let in_stream = half().send(&[&error.to_string()]);
            let at_end = half().send(&[&last.to_string(), "[DONE]"]);
            for reply in [Reply::json(error), in_stream.clone().stall(), in_stream, at_end] {
                let (server, run) = ask([reply, Reply::text("done")]);
                assert_eq!(run.status, 0, "{run}");
                assert_eq!(
                    retries(&run),
                    [format!("[retry 1/9 in 1s: HTTP {status}: m]")],
                    "{run}"
                );
                let requests = server.requests();
                assert_eq!(requests[1].body, requests[0].body, "{run}");
            }
        });
    }

    #[test]
    fn a_gateways_own_words_do_not_make_a_failure_final() {
        for text in ["net/http: TLS handshake timeout", "bad uri", "invalid peer certificate"] {
            let bad =
                Reply::status(502, &format!(r#"{{"error":{{"message":"Get \\"u\\": {text}"}}}}"#));
            let (server, run) = ask([bad, Reply::text("fine")]);
            assert_eq!((run.status, server.requests().len()), (0, 2), "{run}");
            assert!(run.stderr.contains("[retry 1/9 in 1s: HTTP 502: "), "{run}");
        }
    }

    mod needs_proxy {
        use super::*;

        #[test]
        fn a_proxy_that_cannot_be_reached_is_retried() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            drop(listener);
            for (variable, scheme) in [("HTTP_PROXY", "http://"), ("SOCKS_PROXY", "")] {
                let place = Place::new();
                let mut live = through(&place, variable, &format!("{scheme}{address}")).start();
                live.send("hello");
                live.close_stdin();
                live.wait_for_stderr("[retry 1/9 in 1s: ");
            }
        }
    }
}

mod needs_proxy {
    use super::*;

    #[test]
    fn a_proxy_setting_that_cannot_be_used_fails_at_once_and_is_named() {
        for proxy in ["socks5://", "a b:1080", "socks5://[::1"] {
            let run = through(&Place::new(), "SOCKS_PROXY", proxy).run();
            assert_fails_at_once(&run, "proxy");
        }
    }

    #[test]
    fn a_proxy_that_wants_a_password_fails_at_once_and_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines =
                    BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\n\
                Proxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n";
                let _ = stream.write_all(refusal.as_bytes());
            }
        });
        let run = through(&Place::new(), "HTTP_PROXY", &proxy).run();
        assert_fails_at_once(&run, "proxy");
    }
}

mod needs_repairs {
    use super::*;

    #[test]
    fn an_assistant_message_that_the_server_finds_empty_is_dropped_with_its_tool_messages() {
        let call = Reply::calls(&[ECHO, ("c2", "shell_exec", r#"{"command":"echo ho"}"#)]);
        let (server, run) = ask([call, Reply::status(400, EMPTY), Reply::text("done")]);
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(retries(&run).len(), 0, "{run}");
        let requests = server.requests();
        assert_eq!(requests[1].roles(), ["system", "user", "assistant", "tool", "tool"], "{run}");
        assert_eq!(requests[2].messages(), requests[0].messages(), "{run}");
    }

    #[test]
    fn a_server_that_goes_on_finding_an_empty_message_fails_the_turn_and_one_message_is_lost() {
        let bad = || Reply::status(400, EMPTY);
        let server = Server::start([Reply::text("one"), Reply::text("two"), bad(), bad()]);
        server.push(Reply::text("four"));
        let run = Place::new().run(&server, &[], "first\nsecond\nthird\nfourth\n");
        assert!(run.stderr.contains("content or tool_calls must be set"), "{run}");
        assert_eq!(retries(&run).len(), 0, "{run}");
        let requests = server.requests();
        assert_eq!(requests.len(), 5, "{run}");
        let prompts = "second\n\nthird\n\nfourth";
        assert_eq!(requests[4].messages()[2]["content"], "one", "{run}");
        assert_eq!(requests[4].messages()[3]["content"], prompts, "{run}");
    }

    #[test]
    fn each_call_of_the_model_has_a_repair_of_its_own() {
        let bad = || Reply::status(400, EMPTY);
        let call = || Reply::calls(&[ECHO]);
        let (server, run) = ask([call(), bad(), call(), bad(), Reply::text("done")]);
        assert_eq!((run.status, server.requests().len()), (0, 5), "{run}");
        assert_eq!(server.requests()[4].roles(), ["system", "user"], "{run}");
    }

    #[test]
    fn what_takes_the_place_of_a_dropped_message_is_not_dropped_too() {
        let bad = || Reply::status(400, EMPTY);
        let replies = [Reply::calls(&[ECHO]), Reply::text("one"), bad(), bad(), Reply::text("two")];
        let server = Server::start(replies);
        let run = Place::new().run(&server, &[], "first\nsecond\n");
        assert!(run.stderr.contains("content or tool_calls must be set"), "{run}");
        let requests = server.requests();
        assert_eq!(requests.len(), 4, "{run}");
        let roles = ["system", "user", "assistant", "tool", "assistant", "user"];
        assert_eq!(requests[3].roles(), roles, "{run}");
    }

    #[test]
    fn a_key_that_the_server_refuses_is_left_out_for_the_rest_of_the_run() {
        let temperature = "Unsupported value: 'temperature' does not support 0.7 with this model";
        for (status, text, key) in [
            (400, temperature, "temperature"),
            (422, "stream_options: extra fields not permitted", "stream_options"),
            (400, "Unknown parameter: reasoning_effort.", "reasoning_effort"),
            (400, r#"{"detail":[{"loc":["body","seed"],"msg":"extra"}]}"#, "seed"),
        ] {
            let bad = Reply::status(status, text);
            let server = Server::start([bad, Reply::text("one"), Reply::text("two")]);
            let place = Place::new();
            place.config(&server, "reasoning_effort=high\nseed=1");
            let run = place.run(&server, &[], "first\nsecond\n");
            assert_eq!(run.stderr.lines().filter(|line| line.contains(key)).count(), 1, "{run}");
            assert_eq!(retries(&run).len(), 0, "{run}");
            let requests = server.requests();
            assert_eq!(requests.len(), 3, "{run}");
            let mut rest = requests[0].body.clone();
            assert!(rest.as_object_mut().unwrap().shift_remove(key).is_some(), "{run}");
            assert_eq!(requests[1].body, rest, "{run}");
            assert_eq!(requests[2].body.get(key), None, "{run}");
        }
    }

    #[test]
    fn a_refusal_under_200_is_repaired_too() {
        let body = r#"{"error":{"code":400,"message":"temperature is unsupported"}}"#;
        let (server, run) = ask([Reply::status(200, body), Reply::text("done")]);
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(server.requests()[1].body.get("temperature"), None, "{run}");
    }

    #[test]
    fn two_keys_are_left_out_one_after_the_other() {
        let bad = |text| Reply::status(400, text);
        let (server, run) = ask([
            bad("no temperature here"),
            bad("stream_options is unknown"),
            Reply::text("done"),
        ]);
        assert_eq!(run.status, 0, "{run}");
        let keys: Vec<_> = server.requests()[2].body.as_object().unwrap().keys().cloned().collect();
        for key in ["temperature", "stream_options"] {
            assert!(!keys.contains(&key.to_string()), "{keys:?}{run}");
        }
        assert_eq!(server.requests()[2].body["stream"], true, "{run}");
    }

    #[test]
    fn reasoning_that_the_server_refuses_is_left_out_of_the_messages() {
        for key in ["reasoning_content", "reasoning"] {
            let text = format!("property 'messages.2.assistant.{key}' is unsupported");
            let bad = Reply::status(400, &text);
            let script = [thoughtful_call(key), bad, Reply::calls(&[ECHO]), Reply::text("done")];
            let (server, run) = ask(script);
            assert_eq!(run.status, 0, "{run}");
            let requests = server.requests();
            assert_eq!(requests[1].messages()[2][key], "I think", "{run}");
            let mut rest = requests[1].messages().to_vec();
            rest[2].as_object_mut().unwrap().shift_remove(key);
            assert_eq!(requests[2].messages(), rest, "{run}");
            assert_eq!(requests[3].messages()[2].get(key), None, "{run}");
        }
    }

    #[test]
    fn any_field_of_a_stored_message_that_the_server_refuses_is_left_out_for_the_rest_of_the_run() {
        for key in ["reasoning_details", "annotations", "provider_specific_fields", "audio"] {
            let text = format!("messages.3.{key}: Extra inputs are not permitted");
            let bad = Reply::status(400, &json!({"error": {"message": text}}).to_string());
            let server = Server::start([thoughtful_call(key), bad, Reply::text("one")]);
            server.push(Reply::text("two"));
            let run = Place::new().run(&server, &[], "first\nsecond\n");
            let requests = server.requests();
            assert_eq!((requests.len(), retries(&run).len()), (4, 0), "{run}");
            assert_eq!(run.stderr.lines().filter(|line| line.contains(key)).count(), 1, "{run}");
            assert_eq!(requests[1].messages()[2][key], "I think", "{run}");
            for request in &requests[2..] {
                assert_eq!(request.messages()[2].get(key), None, "{run}");
                assert_eq!(request.messages()[2]["tool_calls"][0]["id"], "c1", "{run}");
            }
        }
    }

    #[test]
    fn a_repair_that_does_not_help_is_not_tried_again() {
        for key in ["temperature", "reasoning_content"] {
            let bad = || Reply::status(400, &format!("{key} is wrong"));
            let (server, run) = ask([thoughtful_call("reasoning_content"), bad(), bad()]);
            assert_eq!(run.status, 1, "{run}");
            assert!(run.stderr.contains(&format!("API error: HTTP 400: {key} is wrong")), "{run}");
            assert_eq!(server.requests().len(), 3, "{run}");
        }
    }

    mod needs_sessions {
        use super::*;

        #[test]
        fn an_empty_assistant_message_of_a_loaded_session_is_dropped_and_stays_away() {
            let server =
                Server::start([Reply::status(400, EMPTY), Reply::text("one"), Reply::text("two")]);
            let place = Place::new();
            std::fs::create_dir_all(place.sessions()).unwrap();
            let old = json!([{"role": "system", "content": "old"}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ""}]);
            std::fs::write(place.sessions().join("old.json"), old.to_string()).unwrap();
            let run = place.run(&server, &[], "/load old\nfirst\nsecond\n");
            let requests = server.requests();
            assert_eq!(requests[0].roles(), ["system", "user", "assistant", "user"], "{run}");
            for request in &requests[1..] {
                let empty = |message: &&serde_json::Value| message["content"] == "";
                assert_eq!(request.messages().iter().find(empty), None, "{run}");
            }
        }
    }
}

mod needs_sessions {
    use super::*;

    #[test]
    fn the_finished_iterations_of_a_failed_turn_stay() {
        let script = [Reply::calls(&[ECHO]), Reply::status(401, "too late"), Reply::text("done")];
        let server = Server::start(script);
        let place = Place::new();
        let run = place.run(&server, &[], "first\nsecond\n");
        let third = &server.requests()[2];
        let roles = ["system", "user", "assistant", "tool", "assistant", "user"];
        assert_eq!(third.roles(), roles, "{run}");
        assert_eq!(third.messages()[4]["content"], "(stopped)", "{run}");
        assert_eq!(place.session()["messages"].as_array().unwrap().len(), 7, "{run}");
    }
}
