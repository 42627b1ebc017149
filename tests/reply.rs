//! Replies where timing matters, or more than one (§3 and §5 of the contract). A single reply's
//! cases are in `wire/`.

mod common;

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

// ---- Shown as it arrives

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
fn a_server_that_talks_on_behind_a_complete_reply_is_not_listened_to_for_ever() {
    let pings = (0..1000).fold(Reply::sse(&[&say("one"), "[DONE]"]), |reply, _| {
        reply.pause(100).send(&[": ping\n\n"])
    });
    let server = Server::start([pings]);
    let run = Place::new().mb(&server, &["-"]).stdin("hello").limit(20).run();
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("one"), "{run}");
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

// ---- What is stored

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
    assert!(!requests[2].body.to_string().contains("half a text"), "{run}");
    assert!(!place.session().to_string().contains("half a text"), "{run}");
    assert!(!place.path("ran").exists(), "{run}");
}

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

#[test]
fn broken_arguments_are_never_sent_back_nor_saved() {
    for arguments in [r#"{"command":"echo h"#, "", "null", "[]", "echo hi"] {
        let call = Reply::calls(&[("c1", "shell_exec", arguments)]);
        let (server, place) = (Server::start([call, Reply::text("one")]), Place::new());
        let run = place.run(&server, &[], "first\n");
        let stored = "/tool_calls/0/function/arguments";
        assert_eq!(server.requests()[1].messages()[2].pointer(stored), Some(&json!("{}")), "{run}");
        assert_eq!(place.session()["messages"][2].pointer(stored), Some(&json!("{}")), "{run}");
        let result = server.requests()[1].messages()[3]["content"].as_str().unwrap().to_string();
        assert!(result.starts_with("error: "), "{result}{run}");
    }
}
