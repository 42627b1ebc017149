//! Replies where timing matters, or more than one (§3 and §5 of the contract). A single reply's
//! cases are in `wire/`.

#[macro_use]
mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::*;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20); // the settings' timeout is 300

fn say(text: &str) -> String {
    delta(json!({"content": text}))
}

/// The text of a chunk with a whole call.
fn call(index: usize, id: &str, command: &str) -> String {
    let arguments = json!({"command": command}).to_string();
    let function = json!({"name": "shell_exec", "arguments": arguments});
    let call = json!({"index": index, "id": id, "type": "function", "function": function});
    delta(json!({"tool_calls": [call]}))
}

/// Runs one prompt against these replies.
fn ask(script: impl IntoIterator<Item = Reply>) -> (Server, Place, Run) {
    let (server, place) = (Server::start(script), Place::new());
    let run = place.run(&server, &["-"], "hello");
    (server, place, run)
}

/// Runs two turns, the second answered by a text; returns the second's messages behind the system
/// prompt, and the run.
fn two_turns(script: impl IntoIterator<Item = Reply>) -> (Vec<Value>, Run) {
    let server = Server::start(script);
    server.push(Reply::text("done"));
    let run = Place::new().run(&server, &[], "first\nsecond\n");
    (server.requests().last().unwrap().messages()[1..].to_vec(), run)
}

// ---- A line and its end

#[test]
fn a_line_is_taken_when_it_is_whole_however_slowly_it_comes() {
    let event = format!("data: {}\n\n", say("日本語"));
    let (start, end) = event.split_at(event.find('本').unwrap());
    let gate = Gate::default();
    let reply = Reply::sse(&[start]).wait(&gate).send(&[end, &finish("stop"), "[DONE]"]);
    let (server, place) = (Server::start([reply]), Place::new());
    let mut live = place.start(&server, &["-"]);
    live.send("hello");
    live.close_stdin();
    live.wait_for_stdout("...requesting...\n");
    gate.open();
    let run = live.finish();
    assert!(run.stdout.contains("\n日本語\n"), "{run}");
}

// ---- The end of a reply

#[test]
fn a_complete_reply_ends_the_turn_though_the_connection_stays_open() {
    let usage = usage(10, 0, 5);
    for last in [&["[DONE]"] as &[&str], &[&finish("stop")], &[&usage], &["data:[DONE]\r\n"]] {
        let open = Reply::sse(&[&say("one")]).send(last);
        for reply in [open.clone().stall(), open.with_length().stall()] {
            let start = Instant::now();
            let (messages, run) = two_turns([reply]);
            assert!(start.elapsed() < SOON, "{:?}{run}", start.elapsed());
            assert_eq!(messages[1]["content"], "one", "{run}");
            assert!(run.stdout.contains("done") && run.stderr.is_empty(), "{run}");
        }
    }
}

#[test]
fn a_finish_reason_in_every_chunk_ends_nothing() {
    let words: Vec<String> = (1..=60).map(|number| format!("w{number} ")).collect();
    let chunk = |word: &String| {
        let choice = json!({"index": 0, "delta": {"content": word}, "finish_reason": "stop"});
        json!({"choices": [choice]}).to_string()
    };
    let reply = words.iter().fold(Reply::sse(&[]), |r, word| r.send(&[&chunk(word)]).pause(20));
    let (messages, run) = two_turns([reply.send(&["[DONE]"])]);
    assert_eq!(messages[1]["content"], words.concat(), "{run}");
}

#[test]
fn what_comes_behind_a_finish_reason_or_usage_belongs_to_the_reply() {
    let at_once = json!({"choices": [{"delta": {"content": "one"}, "finish_reason": "stop"}]});
    let (early, usage) = (finish("STOP"), usage(10, 0, 5));
    for (first, text) in [
        (vec![early.as_str()], "two"),
        (vec![&at_once.to_string()], "onetwo"),
        (vec![&say("one"), &usage], "onetwo"),
    ] {
        // So many lines that patience counted by lines is spent.
        let reply = Reply::sse(&first).send(&[": ping\n\n"; 200]).pause(100);
        let (messages, run) = two_turns([reply.send(&[&say("two"), &finish("stop"), "[DONE]"])]);
        assert_eq!(messages[1]["content"], text, "{run}");
    }
}

#[test]
fn each_call_may_have_a_finish_reason_behind_it() {
    let end = finish("tool_calls");
    let calls = (0..3).fold(Reply::sse(&[]), |reply, number| {
        let call = call(number, &format!("c{number}"), &format!("echo {number} >> log"));
        reply.send(&[&call, &end]).send(&[": ping\n\n"; 100]).pause(100)
    });
    let (server, place, run) = ask([calls.send(&["[DONE]"]), Reply::text("done")]);
    assert_eq!(place.read("log"), "0\n1\n2\n", "{run}");
    let roles = ["system", "user", "assistant", "tool", "tool", "tool"];
    assert_eq!(server.requests()[1].roles(), roles, "{run}");
}

#[test]
fn a_server_that_talks_on_behind_a_complete_reply_is_not_listened_to_for_ever() {
    let more = say(" and more");
    for (end, talk) in [
        ("[DONE]", ": ping\n\n"), // behind [DONE] nothing counts
        ("[DONE]", &more),
        (&finish("stop"), ": ping\n\n"), // behind a finish reason comments do not count
    ] {
        let reply = Reply::sse(&[&say("one"), end]);
        let talk = (0..1000).fold(reply, |reply, _| reply.pause(100).send(&[talk]));
        let server = Server::start([talk]);
        let run = Place::new().mb(&server, &["-"]).stdin("hello").limit(20).run();
        assert_eq!(run.status, 0, "{run}");
        assert!(run.stdout.contains("\none\n"), "{run}");
    }
}

#[test]
fn a_connection_that_is_given_up_is_closed() {
    let open = Reply::sse(&[&say("one"), &finish("stop")]).stall();
    let done = Reply::sse(&[&say("one"), "[DONE]"]).with_length().stall();
    for first in [open, done] {
        let (server, place) = (Server::start([first]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("hello\n");
        server.wait_for_requests(1);
        server.wait_for_end(server.requests()[0].connection); // though mb runs, and waits
        live.send("!echo still\n");
        live.wait_for_stdout("still");
        live.close_stdin();
        assert_eq!(live.finish().status, 0);
    }
}

#[test]
fn a_complete_reply_is_taken_though_its_framing_breaks_off() {
    for reply in [
        Reply::sse(&[&say("one"), "[DONE]"]).cut(),
        Reply::sse(&[&say("one"), &finish("stop")]).reset(),
        Reply::sse(&[&say("one"), &finish("stop"), "[DONE]"]).with_length().cut(),
    ] {
        let (server, _, run) = ask([reply]);
        assert_eq!((run.status, server.requests().len()), (0, 1), "{run}");
        assert!(run.stdout.contains("one") && run.stderr.is_empty(), "{run}");
    }
}

#[test]
fn a_reply_of_many_megabytes_is_no_problem() {
    let pad = "x".repeat(11_000_000);
    let message = json!({"role": "assistant", "content": "one", "x_pad": pad});
    let whole = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let event = delta(json!({"content": "one", "x_pad": pad}));
    for reply in [Reply::json(whole), Reply::sse(&[&event, &finish("stop"), "[DONE]"])] {
        let (messages, run) = two_turns([reply]);
        assert_eq!(messages[1]["x_pad"].as_str().map(str::len), Some(pad.len()), "{run}");
    }
}

// ---- A refusal

#[test]
fn beside_a_text_a_refusal_is_a_field_like_any_other() {
    let message = json!({"role": "assistant", "content": "Fine.", "refusal": ""});
    let whole = Reply::json(json!({"choices": [{"message": message, "finish_reason": "stop"}]}));
    let (messages, run) = two_turns([whole]);
    assert!(run.stdout.contains("\nFine.\n"), "{run}");
    assert_eq!(messages[1], message, "{run}");
}

// ---- Replies without an end

/// A server that answers one request with these bytes and then with a block again and again, until
/// the connection is closed; and mb, which is asked once and may use 200 MiB of memory.
fn endless(place: &Place, start: &str, block: String) -> (Live, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("endpoint=http://{}/v1", listener.local_addr().unwrap());
    let start = format!("HTTP/1.1 {start}");
    let server = thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 65536];
            let length = stream.read(&mut request).unwrap_or(0);
            if request[..length].starts_with(b"POST") {
                let _ = stream.write_all(start.as_bytes());
                while stream.write_all(block.as_bytes()).is_ok() {}
                return; // nobody else is answered
            }
        }
    });
    let mb = place.mb_alone(&[&endpoint]).setup(|| {
        let limit = libc::rlimit { rlim_cur: 200 << 20, rlim_max: 200 << 20 };
        unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) };
    });
    let mut live = mb.limit(20).start();
    live.send("hello\n");
    (live, server)
}

#[test]
fn a_reply_of_256_mib_is_given_up_and_its_connection_closed() {
    let (place, comment) = (Place::new(), format!(": {}\n", "x".repeat(1 << 20)));
    let (mut live, server) = endless(&place, "200 OK\r\n\r\n", comment);
    live.wait_for_stderr("\n"); // an error, or a retry
    live.wait_until("the connection is closed", || server.is_finished());
}

#[test]
fn what_comes_without_end_behind_done_takes_neither_time_nor_memory() {
    let chunk = format!("data: {}\n\n", say(&"x".repeat(1000)));
    let start = format!("200 OK\r\n\r\ndata: {}\n\ndata: [DONE]\n\n", say("one"));
    let place = Place::new();
    let (mut live, server) = endless(&place, &start, chunk);
    live.wait_for_stdout("one\n");
    live.wait_until("the connection is closed", || server.is_finished());
    live.close_stdin();
    let run = live.finish();
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
}

#[test]
fn an_errors_body_without_end_is_read_for_a_mebibyte_only() {
    let place = Place::new();
    let (mut live, server) = endless(&place, "401 Unauthorized\r\n\r\n", "no key ".repeat(1000));
    live.wait_for_stderr("API error: HTTP 401: no key no key");
    live.wait_until("the connection is closed", || server.is_finished());
    live.close_stdin();
    let run = live.finish();
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stderr.len() < 600, "{run}");
}

// ---- What is stored

#[test]
fn nothing_of_an_empty_reply_is_stored() {
    let thought = Reply::sse(&[&delta(json!({"reasoning": "hmm"})), &finish("stop"), "[DONE]"]);
    let null = json!({"choices": [{"message": {"content": null}, "finish_reason": "stop"}]});
    for reply in [thought, Reply::text(""), Reply::json(null)] {
        let (messages, run) = two_turns([reply]);
        assert!(run.stderr.contains("empty reply (finish reason: stop)"), "{run}");
        assert!(!run.stderr.contains("[retry "), "{run}");
        assert_eq!(messages, [json!({"role": "user", "content": "first\n\nsecond"})], "{run}");
    }
}

#[test]
fn a_reply_cut_off_by_the_token_limit_says_so_and_is_stored() {
    let (messages, run) = two_turns([Reply::sse(&[&say("half a"), &finish("length"), "[DONE]"])]);
    let lines: Vec<_> = run.stderr.lines().collect();
    assert_eq!(lines, ["[cut off: token limit]"], "{run}");
    assert_eq!(messages[1], json!({"role": "assistant", "content": "half a"}), "{run}");
}

#[test]
fn calls_run_one_after_the_other_and_each_is_answered_behind_its_message() {
    let first = Reply::sse(&[&call(0, "a", "sleep 0.2; echo 1 >> log; cat log")]).send(&[
        &call(1, "b", "echo 2 >> log; cat log"),
        &finish("tool_calls"),
        "[DONE]",
    ]);
    let second = Reply::sse(&[&call(0, "a", "cat log"), "[DONE]"]); // its id was there before
    let (server, place, run) = ask([first, second, Reply::text("done")]);
    assert_eq!(place.read("log"), "1\n2\n", "{run}");
    let requests = server.requests();
    let roles = ["system", "user", "assistant", "tool", "tool", "assistant", "tool"];
    assert_eq!(requests[2].roles(), roles, "{run}");
    let at = |place: usize| {
        let message = &requests[2].messages()[place];
        (message["tool_call_id"].as_str().unwrap(), message["content"].as_str().unwrap())
    };
    let both = "1\n2\n\n\nexit: 0";
    assert_eq!([at(3), at(4), at(6)], [("a", "1\n\n\nexit: 0"), ("b", both), ("a", both)], "{run}");
}

#[test]
fn calls_without_an_id_get_one_that_their_answer_carries() {
    let function = json!({"name": "shell_exec", "arguments": r#"{"command":"true"}"#});
    let call = json!({"type": "function", "function": function});
    let reply = || {
        let message = json!({"role": "assistant", "tool_calls": [call, call]});
        Reply::json(json!({"choices": [{"message": message, "finish_reason": "tool_calls"}]}))
    };
    let (server, _, run) = ask([reply(), reply(), Reply::text("done")]);
    let last = &server.requests()[2];
    for message in [2, 5] {
        let calls = last.messages()[message]["tool_calls"].as_array().unwrap();
        assert_ne!(calls[0]["id"], calls[1]["id"], "{run}");
        for (call, answer) in calls.iter().zip(&last.messages()[message + 1..]) {
            assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()), "{run}");
            assert_eq!(answer["tool_call_id"], call["id"], "{run}");
        }
    }
}

#[test]
fn every_request_sends_back_all_that_was_stored_before_unknown_fields_included() {
    let function = json!({"name": "shell_exec", "arguments": r#"{"command":"true"}"#, "x_f": 1});
    let extra = json!({"google": {"thought_signature": "c2ln"}});
    let call =
        json!({"id": "c1", "type": "function", "extra_content": extra, "function": function});
    let details = json!([{"type": "reasoning.encrypted", "data": "QUJD", "index": 0}]);
    let asks = json!({"role": "assistant", "reasoning_details": details, "tool_calls": [call]});
    let says = json!({"role": "assistant", "content": "ok", "x_list": [1, {"a": null}]});
    let reply = |message: &Value| Reply::json(json!({"choices": [{"message": message}]}));
    let server = Server::start([reply(&asks), reply(&says), Reply::text("done")]);
    let run = Place::new().run(&server, &[], "first\nsecond\n");
    let requests = server.requests();
    assert_eq!(requests[2].messages()[2], asks, "{run}");
    assert_eq!(requests[2].messages()[4], says, "{run}");
    for pair in requests.windows(2) {
        let before = pair[0].messages();
        assert_eq!(&pair[1].messages()[..before.len()], before, "{run}");
    }
}

// ---- What needs more than the core

mod needs_streaming {
    use super::*;

    #[test]
    fn text_is_shown_while_the_stream_is_open() {
        let whole = json!({"choices": [{"index": 0, "message": {"content": "early"}}]}).to_string();
        let parts = delta(json!({"content": [{"type": "text", "text": "early"}]}));
        for first in [say("early"), parts, whole] {
            let gate = Gate::default();
            let reply = Reply::sse(&[&first]).wait(&gate).send(&[&say(" late"), "[DONE]"]);
            let server = Server::start([reply]);
            let place = Place::new();
            let mut live = place.start(&server, &[]);
            live.send("hello\n");
            live.wait_for_stdout("early");
            gate.open();
            live.wait_for_stdout(" late\n");
            live.close_stdin();
            let run = live.finish();
            assert!(run.stdout.contains("\nearly late\n"), "{run}");
        }
    }

    mod needs_reasoning {
        use super::*;

        #[test]
        fn reasoning_is_shown_while_the_stream_is_open_and_ends_before_the_text() {
            for key in ["reasoning_content", "reasoning"] {
                let (thought, spoken) = (Gate::default(), Gate::default());
                let reply = Reply::sse(&[&delta(json!({key: "hmm"}))]).wait(&thought);
                let reply = reply.send(&[&say("yes")]).wait(&spoken).send(&["[DONE]"]);
                let (server, place) = (Server::start([reply]), Place::new());
                let mut live = place.start(&server, &[]);
                live.send("hello\n");
                live.wait_for_stdout("--- reasoning start ---\nhmm");
                thought.open();
                live.wait_for_stdout("\n--- reasoning end ---\nyes");
                spoken.open();
                live.close_stdin();
                assert_eq!(live.finish().status, 0);
            }
        }
    }

    mod needs_retries {
        use super::*;

        #[test]
        fn a_call_does_not_run_before_its_reply_is_complete() {
            let gate = Gate::default();
            let reply = Reply::sse(&[&call(0, "c1", "touch ran"), &say("soon")]).wait(&gate).cut();
            let (server, place) = (Server::start([reply, Reply::text("done")]), Place::new());
            let mut live = place.start(&server, &["-"]);
            live.send("hello");
            live.close_stdin();
            live.wait_for_stdout("soon");
            gate.open();
            let run = live.finish();
            assert_eq!(run.status, 0, "{run}");
            assert!(!run.stdout.contains("[tool call: "), "{run}");
            assert!(!place.path("ran").exists(), "{run}");
        }

        mod needs_sessions {
            use super::*;

            #[test]
            fn nothing_of_a_broken_off_reply_is_stored_shown_again_or_run() {
                let half = Reply::sse(&[&say("half a text"), &call(0, "c1", "touch ran")]).cut();
                let script = [half, Reply::calls(&[("c2", "shell_exec", r#"{"command":"true"}"#)])];
                let (server, place) = (Server::start(script), Place::new());
                server.push(Reply::text("whole"));
                let run = place.run(&server, &[], "first\n");
                assert_eq!(run.stdout.matches("half a text").count(), 1, "{run}");
                let requests = server.requests();
                assert_eq!(requests[1].messages(), requests[0].messages(), "{run}");
                assert_eq!(requests[2].roles(), ["system", "user", "assistant", "tool"], "{run}");
                let half = |message: &Value| text_of(message).contains("half a text");
                assert!(!requests[2].messages()[1..].iter().any(half), "{run}");
                assert!(
                    !place.session()["messages"].as_array().unwrap()[1..].iter().any(half),
                    "{run}"
                );
                assert!(!place.path("ran").exists(), "{run}");
            }
        }
    }
}

mod needs_sessions {
    use super::*;

    #[test]
    fn broken_arguments_are_never_sent_back_nor_saved() {
        for arguments in [r#"{"command":"echo h"#, "", "null", "[]", "echo hi"] {
            let call = Reply::calls(&[("c1", "shell_exec", arguments)]);
            let (server, place) = (Server::start([call, Reply::text("one")]), Place::new());
            let run = place.run(&server, &[], "first\n");
            let stored = "/tool_calls/0/function/arguments";
            assert_eq!(
                server.requests()[1].messages()[2].pointer(stored),
                Some(&json!("{}")),
                "{run}"
            );
            assert_eq!(place.session()["messages"][2].pointer(stored), Some(&json!("{}")), "{run}");
            let result =
                server.requests()[1].messages()[3]["content"].as_str().unwrap().to_string();
            assert!(result.starts_with("error: "), "{result}{run}");
        }
    }

    #[test]
    fn a_text_in_pieces_and_in_parts_is_one_text_wherever_it_goes() {
        let parts = delta(json!({"content": [{"type": "text", "text": "two "}]}));
        let reply = Reply::sse(&[&say("one "), &parts, &say("three"), &finish("stop"), "[DONE]"]);
        let (server, place) = (Server::start([reply]), Place::new());
        let run = place.run(&server, &[], "hello\n");
        assert!(run.stdout.contains("\none two three\n"), "{run}");
        assert_eq!(text_of(&place.session()["messages"][2]), "one two three", "{run}");
    }
}

mod needs_quiet {
    use super::*;

    #[test]
    fn a_text_in_pieces_and_in_parts_is_printed_whole() {
        let parts = delta(json!({"content": [{"type": "text", "text": "two "}]}));
        let reply = Reply::sse(&[&say("one "), &parts, &say("three"), &finish("stop"), "[DONE]"]);
        let server = Server::start([reply]);
        let run = Place::new().run(&server, &["-", "quiet=true"], "hello");
        assert_eq!(run.stdout, "one two three\n", "{run}");
    }
}
