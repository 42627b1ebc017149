//! The conversation, whatever happens to it: what every server accepts (§3 of the contract).

#[macro_use]
mod common;

use std::fs;

use common::*;
use serde_json::{Value, json};

const ECHO: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"echo hi"}"#);

/// Fails where a conversation breaks a rule of some server.
fn assert_well_formed(messages: &[Value]) {
    let shown = || serde_json::to_string_pretty(messages).unwrap();
    well_formed(messages).unwrap_or_else(|rule| panic!("{rule}\nin {}", shown()));
}

/// Runs these lines against these replies. Whatever was sent and is saved has to be well-formed.
/// Returns the requests, and what is saved.
fn talk(
    config: &str,
    lines: &str,
    script: impl IntoIterator<Item = Reply>,
) -> (Vec<Request>, Value) {
    let (server, place) = (Server::start(script), Place::new());
    place.config(&server, config);
    let run = place.run(&server, &[], lines);
    assert_eq!(run.status, 0, "{run}");
    let requests = server.requests();
    requests.iter().for_each(|request| assert_well_formed(request.messages()));
    let session = if place.sessions().exists() { place.session() } else { Value::Null };
    session["messages"].as_array().into_iter().for_each(|messages| assert_well_formed(messages));
    (requests, session)
}

fn reply(message: Value) -> Reply {
    Reply::json(json!({"choices": [{"index": 0, "message": message}]}))
}

/// A reply without streaming that calls `echo hi` once for each of these ids.
fn calls_with_ids(ids: &[Value]) -> Reply {
    let function = json!({"name": ECHO.1, "arguments": ECHO.2});
    let call = |id| json!({"id": id, "type": "function", "function": function});
    reply(json!({"content": null, "tool_calls": ids.iter().map(call).collect::<Vec<_>>()}))
}

fn failure() -> Reply {
    Reply::status(401, "who are you")
}

// ---- The system prompt

#[test]
fn the_first_message_is_the_system_prompt_with_folder_and_system() {
    let (server, place) = (Server::start([Reply::text("one"), Reply::text("two")]), Place::new());
    place.write("p.txt", "hello");
    for (args, stdin) in [(&["p.txt"][..], ""), (&[], "hello\n")] {
        let run = place.run(&server, args, stdin);
        let system = server.requests().last().unwrap().messages()[0].clone();
        assert_eq!(system["role"], "system", "{run}");
        let text = system["content"].as_str().unwrap();
        assert!(text.contains(place.work().to_str().unwrap()), "{text}");
        assert!(text.contains(std::env::consts::OS), "{text}");
    }
    assert_eq!(server.requests()[0].messages()[0], server.requests()[1].messages()[0]);
}

// ---- Users' messages

#[test]
fn a_prompt_joins_the_unanswered_ones_before_it() {
    let empty = reply(json!({"content": ""}));
    let thought = reply(json!({"content": null, "reasoning_content": "hm"}));
    let script = [failure(), empty, thought, Reply::text("done"), Reply::text("more")];
    let (requests, _) = talk("", "one\ntwo\nthree\nfour\nfive\n", script);
    let contents: Vec<_> = requests.iter().map(|r| r.messages()[1]["content"].clone()).collect();
    let all = ["one", "one\n\ntwo", "one\n\ntwo\n\nthree", "one\n\ntwo\n\nthree\n\nfour"];
    assert_eq!(contents[..4], all);
    assert_eq!(contents[4], all[3]);
    assert_eq!(requests[4].messages()[3]["content"], "five");
}

#[test]
fn a_prompt_behind_a_tool_message_gets_stopped_in_between() {
    let call = || Reply::calls(&[ECHO]);
    for (config, script) in [
        ("max_al_iterations=1", vec![call(), Reply::text("done")]),
        ("", vec![call(), failure(), Reply::text("done")]),
        ("", vec![call(), reply(json!({"content": ""})), Reply::text("done")]),
    ] {
        let (requests, _) = talk(config, "first\nsecond\n", script);
        let messages = requests.last().unwrap().messages();
        assert_eq!(messages.len(), 6);
        assert_eq!(messages[4], json!({"role": "assistant", "content": "(stopped)"}));
        assert_eq!(messages[5], json!({"role": "user", "content": "second"}));
    }
}

// ---- Calls and their answers

#[test]
fn each_call_is_answered_directly_behind_it_in_its_order() {
    let echo = |text| format!(r#"{{"command":"echo {text}"}}"#);
    let (a, b, c) = (echo("a"), echo("b"), echo("c"));
    let calls = Reply::calls(&[
        ("x", "shell_exec", a.as_str()),
        ("y", "nosuch", b.as_str()),
        ("z", "shell_exec", &c),
        ("w", "shell_exec", "{broken"),
    ]);
    let second = Reply::calls(&[("x", "shell_exec", b.as_str())]);
    let (requests, _) = talk("", "go\n", [calls, second, Reply::text("done")]);
    let answers: Vec<_> = requests[2].messages().iter().filter(|m| m["role"] == "tool").collect();
    let ids: Vec<_> =
        answers.iter().map(|answer| answer["tool_call_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["x", "y", "z", "w", "x"]);
    for (answer, start) in answers.iter().zip(["a\n", "error: ", "c\n", "error: ", "b\n"]) {
        assert!(answer["content"].as_str().unwrap().starts_with(start), "{answer}");
    }
}

/// The ids that are stored of calls with these ids, which have to be unique.
fn ids(ids: &[Value]) -> Vec<String> {
    let (requests, _) = talk("", "go\n", [calls_with_ids(ids), Reply::text("done")]);
    let calls = requests[1].messages()[2]["tool_calls"].as_array().unwrap().clone();
    calls.iter().map(|call| call["id"].as_str().unwrap().to_string()).collect()
}

#[test]
fn repeated_and_missing_ids_are_replaced_by_new_ones() {
    let same = ids(&[json!("a"), json!("a"), json!("b"), json!("a")]);
    assert_eq!((same.len(), same[0].as_str(), same[2].as_str()), (4, "a", "b"), "{same:?}");
    assert_eq!(ids(&[json!(""), json!(null), json!(""), json!("x")]).len(), 4);
    assert_eq!(ids(&[json!("acall1"), json!("a"), json!("a"), json!("acall2")]).len(), 4);
}

#[test]
fn a_new_id_is_none_that_the_server_has_given_already() {
    for bad in [json!(null), json!("a")] {
        let made_up = ids(&[json!("b"), json!("a"), bad.clone()]).remove(2);
        let stored = ids(&[json!(made_up), json!("a"), bad]); // now the server has it, too
        assert_eq!(stored[..2], [made_up.as_str(), "a"], "{stored:?}");
    }
}

#[test]
fn an_empty_list_of_calls_is_not_stored() {
    for calls in [json!([]), json!(null)] {
        let message = json!({"role": "assistant", "content": "yes", "tool_calls": calls});
        let (requests, _) = talk("", "one\ntwo\n", [reply(message), Reply::text("done")]);
        let stored = &requests[1].messages()[2];
        assert_eq!(stored["content"], "yes");
        assert!(stored.get("tool_calls").is_none_or(Value::is_null), "{stored}");
    }
}

// ---- What is left of a turn that ends badly

#[test]
fn an_interrupted_turn_leaves_every_call_answered() {
    let sleep = ("c2", "shell_exec", r#"{"command":"touch started; sleep 300"}"#);
    let calls = Reply::calls(&[ECHO, sleep, ("c3", "shell_exec", r#"{"command":"touch ran"}"#)]);
    let (server, place) = (Server::start([calls, Reply::text("done")]), Place::new());
    let mut live = place.start(&server, &[]);
    live.send("first\n");
    wait_until("it runs", || place.path("started").exists());
    live.signal(libc::SIGINT);
    live.wait_for_stderr("[interrupted]");
    live.send("second\n/quit\n");
    let run = live.finish();
    let messages = server.requests()[1].messages().to_vec();
    assert_well_formed(&messages);
    assert_eq!(messages.len(), 8, "{run}");
    assert_eq!(messages[6], json!({"role": "assistant", "content": "(stopped)"}), "{run}");
    assert!(!place.path("ran").exists(), "{run}");
}

// ---- What needs more than the core

mod needs_sessions {
    use super::*;

    #[test]
    fn a_loaded_conversation_goes_on_by_the_same_rules() {
        let user = json!({"role": "user", "content": "old"});
        let function = json!({"name": ECHO.1, "arguments": ECHO.2});
        let call = json!({"id": "x", "type": "function", "function": function});
        let assistant = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let tool = json!({"role": "tool", "tool_call_id": "x", "content": "hi"});
        for (old, roles) in [
            (vec![user.clone()], vec!["system", "user"]),
            (
                vec![user, assistant, tool],
                vec!["system", "user", "assistant", "tool", "assistant", "user"],
            ),
        ] {
            let (server, place) = (Server::start([Reply::text("done")]), Place::new());
            fs::create_dir_all(place.sessions()).unwrap();
            fs::write(place.sessions().join("old.json"), Value::from(old).to_string()).unwrap();
            let run = place.run(&server, &[], "/load old\nnew\n");
            assert_eq!(server.requests()[0].roles(), roles, "{run}");
            assert_well_formed(server.requests()[0].messages());
        }
    }

    #[test]
    fn a_users_prompt_is_left_alone() {
        let prompt = "  a\u{200b}b\u{1b}[1m \u{202e}c\t\u{a0}d  ";
        let (requests, session) = talk("", &format!("{prompt}\n"), [Reply::text("done")]);
        let content = requests[0].messages()[1]["content"].as_str().unwrap();
        assert_eq!(content.trim_matches(' '), prompt.trim_matches(' '));
        assert_eq!(session["messages"][1]["content"], content);
    }

    #[test]
    fn broken_arguments_are_an_empty_object_in_the_conversation() {
        for arguments in [
            json!("{\"command\":\"rm -"),
            json!(""),
            json!(null),
            json!("[1]"),
            json!("\"x\""),
            json!("hi"),
        ] {
            let function = json!({"name": "shell_exec", "arguments": arguments});
            let call = json!({"id": "x", "index": 0, "type": "function", "function": function});
            let message = json!({"content": null, "tool_calls": [call]});
            let (requests, session) = talk("", "go\n", [reply(message), Reply::text("done")]);
            let stored = &requests[1].messages()[2]["tool_calls"][0]["function"];
            assert_eq!(stored["arguments"], "{}", "{arguments}");
            assert_eq!(session["messages"][2], requests[1].messages()[2], "{arguments}");
            let answer = requests[1].messages()[3]["content"].as_str().unwrap();
            assert!(answer.starts_with("error: "), "{arguments}: {answer}");
        }
    }

    #[test]
    fn what_the_server_sent_beside_text_and_calls_comes_back_to_it() {
        let function = json!({"name": ECHO.1, "arguments": ECHO.2, "extra": 1});
        let signature = json!({"google": {"thought_signature": "s\u{200b}="}});
        let call = json!({"id": "x", "type": "function", "function": function,
        "extra_content": signature});
        let message = json!({"role": "assistant", "content": "a\u{200b}b\u{1b}", "reasoning_content": "hm",
        "reasoning_details": [{"type": "t", "data": "d", "format": null}], "custom": {"a": [1, {}]},
        "tool_calls": [call]});
        let (requests, session) = talk("", "go\n", [reply(message.clone()), Reply::text("done")]);
        let stored = &requests[1].messages()[2];
        for (key, value) in message.as_object().unwrap() {
            if key == "reasoning_details" {
                assert_eq!(stored[key][0]["data"], "d");
            } else {
                assert_eq!(&stored[key], value, "{key}");
            }
        }
        assert_eq!(&session["messages"][2], stored);
    }

    #[test]
    fn a_failed_turn_leaves_the_prompt_and_the_finished_iterations() {
        let cut = || Reply::sse(&[&delta(json!({"content": "half"})), r#"{"error":{"code":400}}"#]);
        for (script, roles) in [
            (vec![failure()], vec!["user"]),
            (vec![cut()], vec!["user"]),
            (vec![Reply::calls(&[ECHO]), cut()], vec!["user", "assistant", "tool"]),
            (vec![Reply::calls(&[ECHO]), failure()], vec!["user", "assistant", "tool"]),
        ] {
            let script = [Reply::text("one")].into_iter().chain(script);
            let (_, session) = talk("", "first\nsecond\n", script);
            let messages = &session["messages"].as_array().unwrap()[3..];
            let left: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
            assert_eq!(left, roles, "{session}");
            assert!(!messages.iter().any(|m| text_of(m).contains("half")), "{session}");
        }
    }
}

mod needs_compact {
    use super::*;

    #[test]
    fn a_session_full_of_trouble_stays_well_formed_to_its_end() {
        let function = json!({"name": "", "arguments": {"a": 1}});
        let script = [
            calls_with_ids(&[json!("a"), json!("a")]),
            failure(),
            Reply::calls(&[("", "nosuch", "nul"), ("", "shell_exec", "{}")]),
            Reply::sse(&[&delta(json!({"tool_calls": []})), &finish("tool_calls"), "[DONE]"]),
            reply(json!({"content": [{"type": "text", "text": ""}], "tool_calls": []})),
            Reply::text("summary"),
            reply(json!({"content": "", "tool_calls": [{"function": function}]})),
            failure(),
            Reply::text("done"),
        ];
        let (requests, _) = talk("", "one\ntwo\nthree\n/compact\nfour\nfive\n", script);
        assert_eq!(requests.len(), 9);
    }

    mod needs_sessions {
        use super::*;

        #[test]
        fn the_first_prompt_after_compact_joins_the_summary() {
            let script =
                [Reply::text("one"), Reply::text("summary"), failure(), Reply::text("done")];
            let (requests, session) = talk("", "first\n/compact\nsecond\nthird\n", script);
            assert_eq!(requests[3].roles(), ["system", "user"]);
            let content = requests[3].messages()[1]["content"].as_str().unwrap();
            assert!(content.contains("summary\n\nsecond\n\nthird"), "{content}");
            assert_eq!(session["messages"].as_array().unwrap().len(), 3);
        }

        #[test]
        fn the_questions_of_compact_and_save_are_well_formed_behind_a_tool_or_user_message() {
            let call = || Reply::calls(&[ECHO]);
            for command in ["/compact", "/save x"] {
                let script = [call(), failure(), Reply::text("summary"), Reply::text("done")];
                talk("", &format!("first\n{command}\nsecond\n"), script);
                let script =
                    [Reply::text("one"), failure(), Reply::text("summary"), Reply::text("done")];
                talk("", &format!("first\nsecond\n{command}\nthird\n"), script);
                let script = [call(), failure(), failure(), Reply::text("done")];
                let (requests, _) = talk("", &format!("first\n{command}\nsecond\n"), script);
                assert_eq!(requests[3].messages()[5]["content"], "second");
            }
        }
    }
}

mod needs_repairs {
    use super::*;

    #[test]
    fn after_a_repair_the_roles_alternate_again() {
        for first in [vec![Reply::text("gone")], vec![Reply::calls(&[ECHO]), Reply::text("gone")]] {
            let server = Server::start(first);
            server.push(Reply::status(400, "content or tool_calls must be set"));
            server.push(Reply::text("two"));
            let run = Place::new().run(&server, &[], "first\nsecond\n");
            assert_eq!(run.status, 0, "{run}");
            let requests = server.requests();
            let messages = requests.last().unwrap().messages();
            assert_well_formed(messages);
            assert!(!messages.iter().any(|message| message["content"] == "gone"), "{run}");
            let prompt = messages.last().unwrap()["content"].as_str().unwrap();
            assert!(prompt.ends_with("second"), "{run}");
        }
    }
}
