//! How tool calls are dispatched, what is told of bad ones, and `confirm` (§7 of the contract).

#[macro_use]
mod common;

use common::*;
use serde_json::{Value, json};

const TOUCH: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"touch ran; echo it ran"}"#);
const QUESTION: &str = "Run it? [y/N]";

/// Runs one turn with these calls, each a name and its arguments' text; returns their results.
fn results_in(place: &Place, calls: &[(&str, &str)]) -> (Vec<String>, Run) {
    let ids: Vec<String> = (0..calls.len()).map(|n| format!("c{n}")).collect();
    let all: Vec<_> =
        ids.iter().zip(calls).map(|(id, call)| (id.as_str(), call.0, call.1)).collect();
    let server = Server::start([Reply::calls(&all), Reply::text("done")]);
    let run = place.run(&server, &["-"], "do it");
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("\ndone\n"), "{run}");
    let second = &server.requests()[1];
    let answers = &second.messages()[3..];
    assert_eq!(answers.len(), calls.len(), "{run}");
    for (answer, id) in answers.iter().zip(&ids) {
        assert_eq!(
            (&answer["role"], &answer["tool_call_id"]),
            (&json!("tool"), &json!(id)),
            "{run}"
        );
    }
    (answers.iter().map(|answer| answer["content"].as_str().unwrap().into()).collect(), run)
}

fn results(calls: &[(&str, &str)]) -> Vec<String> {
    results_in(&Place::new(), calls).0
}

/// The result of one call that is bad: an error that holds these words.
fn error_of(name: &str, arguments: &str, words: &[&str]) {
    let (place, call) = (Place::new(), [(name, arguments)]);
    let result = results_in(&place, &call).0.remove(0);
    assert!(result.starts_with("error: "), "{call:?}: {result}");
    for word in words {
        assert!(result.contains(word), "no {word} for {call:?}: {result}");
    }
    let files = std::fs::read_dir(place.work()).unwrap().count();
    assert_eq!(files, 1, "{call:?}: {result}"); // the configuration
}

// ---- In order

#[test]
fn calls_run_one_after_the_other_in_the_models_order() {
    let (results, run) = results_in(
        &Place::new(),
        &[
            ("shell_exec", r#"{"command":"sleep 0.3; echo one > log; cat log"}"#),
            ("write_file", r#"{"path":"log","content":"zero\n"}"#),
            ("shell_exec", r#"{"command":"echo two >> log; cat log"}"#),
            ("shell_exec", r#"{"command":"rm log"}"#),
        ],
    );
    assert_eq!(results[0], "one\n\n\nexit: 0", "{run}");
    assert_eq!(results[1], "wrote 5 bytes to log (9 bytes in all)", "{run}");
    assert_eq!(results[2], "zero\none\ntwo\n\n\nexit: 0", "{run}");
    assert_eq!(results[3], "\n\nexit: 0", "{run}");
}

#[test]
fn each_call_is_traced_before_its_result() {
    let (_, run) = results_in(
        &Place::new(),
        &[
            ("shell_exec", r#"{"command":"echo one"}"#),
            ("write_file", r#"{"path":"f","content":"x"}"#),
            ("no_such_tool", r#"{"a":1}"#),
        ],
    );
    let mut rest = run.stdout.as_str();
    for text in [
        "[tool call: shell_exec({\"command\":\"echo one\"})]\n[tool result: shell_exec]\none\n",
        "[tool call: write_file({\"path\":\"f\",\"content\":\"x\"})]\n[tool result: write_file]\n\
            wrote 1 bytes to f (1 bytes in all)\n",
        "[tool call: no_such_tool({\"a\":1})]\n[tool result: no_such_tool]\nerror: ",
        "\ndone\n",
    ] {
        let at = rest.find(text).unwrap_or_else(|| panic!("no {text:?} in its place{run}"));
        rest = &rest[at + text.len()..];
    }
}

#[test]
fn a_call_is_traced_before_it_runs() {
    let command = r#"{"command":"until [ -e go ]; do sleep 0.02; done"}"#;
    let server =
        Server::start([Reply::calls(&[("c1", "shell_exec", command)]), Reply::text("done")]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("do it\n");
    live.wait_for_stdout("[tool call: shell_exec(");
    live.wait_for_stdout(")]\n");
    assert_eq!(server.requests().len(), 1);
    place.write("go", "");
    live.wait_for_stdout("[tool result: shell_exec]\n");
    live.wait_for_stdout("done");
    live.close_stdin();
    assert_eq!(live.finish().status, 0);
}

#[test]
fn calls_of_many_iterations_are_all_answered() {
    let call = |n: usize| json!({"command": format!("echo {n}")}).to_string();
    let calls = (0..5).map(|n| Reply::calls(&[("same", "shell_exec", call(n).as_str())]));
    let server = Server::start(calls.chain([Reply::text("done")]));
    let run = Place::new().run(&server, &["-"], "do it");
    let last = server.requests().pop().unwrap();
    let tools: Vec<_> = last.messages().iter().filter(|m| m["role"] == "tool").collect();
    for (n, tool) in tools.iter().enumerate() {
        assert_eq!(tool["content"], format!("{n}\n\n\nexit: 0"), "{run}");
    }
    assert_eq!(tools.len(), 5, "{run}");
}

// ---- Bad calls

#[test]
fn an_unknown_tool_is_an_error_that_names_those_there_are() {
    let tools = ["shell_exec", "write_file"];
    error_of("read_file", r#"{"path":"x"}"#, &[&tools[..], &["read_file"]].concat());
    error_of("shell", r#"{"command":"touch ran"}"#, &tools);
    error_of("Shell_Exec", r#"{"command":"touch ran"}"#, &tools);
    error_of("functions.shell_exec", r#"{"command":"touch ran"}"#, &tools);
}

#[test]
fn arguments_that_are_no_json_object_are_an_error() {
    for arguments in [
        r#"{"command":"touch ran"#,
        r#"{"command":"touch ran""#,
        r#"touch ran"#,
        r#""touch ran""#,
        r#"["touch ran"]"#,
        r#"{"command":"touch ran"} trailing"#,
        r#"{"command":"touch ran"}{"command":"touch ran"}"#,
        r#"{'command':'touch ran'}"#,
        "{\"command\":\"touch ran\n\"}", // a raw newline
        r#"{"command":"touch ran\ud83d"}"#,
        "null",
        "7",
    ] {
        error_of("shell_exec", arguments, &["JSON object"]);
    }
}

#[test]
fn a_missing_parameter_is_an_error_that_names_it() {
    error_of("shell_exec", "{}", &["command", "string"]);
    error_of("shell_exec", "", &[]);
    error_of("shell_exec", r#"{"cmd":"touch ran"}"#, &["command", "string"]);
    error_of("write_file", "{}", &["string"]);
    error_of("write_file", r#"{"content":"x"}"#, &["path", "string"]);
    error_of("write_file", r#"{"path":"f"}"#, &["content", "string"]);
    error_of("write_file", r#"{"path":"f","offset":0}"#, &["content", "string"]);
}

#[test]
fn missing_or_foreign_arguments_of_a_call_are_an_error() {
    for arguments in [Value::Null, json!([]), json!(7), json!(true)] {
        let function = json!({"name": "shell_exec", "arguments": arguments});
        let call = json!({"index": 0, "id": "c1", "type": "function", "function": function});
        let calls = delta(json!({"tool_calls": [call]}));
        let calls = Reply::sse(&[&calls, &finish("tool_calls"), "[DONE]"]);
        let server = Server::start([calls, Reply::text("done")]);
        let run = Place::new().run(&server, &["-"], "do it");
        assert_eq!(run.status, 0, "{run}");
        let answer = server.requests()[1].messages()[3]["content"].clone();
        assert!(answer.as_str().unwrap().starts_with("error: "), "{run}");
    }
}

#[test]
fn a_string_of_another_type_is_an_error_that_names_it() {
    for value in ["null", "5", "true", r#"["touch ran"]"#, r#"{"a":"touch ran"}"#] {
        error_of("shell_exec", &format!(r#"{{"command":{value}}}"#), &["command", "string"]);
        let path = format!(r#"{{"path":{value},"content":"x"}}"#);
        error_of("write_file", &path, &["path", "string"]);
        let content = format!(r#"{{"path":"f","content":{value}}}"#);
        error_of("write_file", &content, &["content", "string"]);
    }
}

#[test]
fn an_integer_that_is_none_is_an_error_that_names_it() {
    for name in ["offset", "del_bytes"] {
        let values = ["-1", "1.5", "true", "[1]", "{}", "-1e30", "-0.5"];
        let texts = [r#""-1""#, r#""1.5""#, r#""one""#, r#""""#, r#""0x1""#, r#""1 byte""#];
        for value in values.iter().chain(&texts) {
            let arguments = format!(r#"{{"path":"f","content":"x","{name}":{value}}}"#);
            error_of("write_file", &arguments, &[name, "integer"]);
        }
    }
}

#[test]
fn an_integer_may_come_as_text() {
    let place = Place::new();
    place.write("f", "0123456789");
    for (arguments, after) in [
        (r#"{"path":"f","content":"X","offset":2,"del_bytes":"3"}"#, "01X56789"),
        (r#"{"path":"f","content":"Y","offset":"8","del_bytes":0}"#, "01X56789Y"),
        (r#"{"path":"f","content":"Z","offset":"0","del_bytes":"99"}"#, "Z"),
    ] {
        let (results, run) = results_in_anew(&place, arguments);
        assert!(results.starts_with("wrote 1 bytes to f "), "{run}");
        assert_eq!(place.read("f"), after, "{run}");
    }
}

/// The result of a `write_file`, with a server of its own.
fn results_in_anew(place: &Place, arguments: &str) -> (String, Run) {
    let _ = std::fs::remove_file(place.path("model.cfg"));
    let (mut results, run) = results_in(place, &[("write_file", arguments)]);
    (results.remove(0), run)
}

#[test]
fn an_optional_parameter_that_is_null_takes_its_default() {
    for arguments in [
        r#"{"path":"f","content":"new ","offset":null,"del_bytes":null}"#,
        r#"{"path":"f","content":"new ","offset":null}"#,
        r#"{"path":"f","content":"new ","del_bytes":null}"#,
    ] {
        let place = Place::new();
        place.write("f", "old");
        let (results, run) = results_in(&place, &[("write_file", arguments)]);
        assert_eq!(results, ["wrote 4 bytes to f (7 bytes in all)"], "{run}");
        assert_eq!(place.read("f"), "new old", "{run}");
    }
}

#[test]
fn a_bad_call_does_not_keep_the_others_from_running() {
    let results = results(&[
        ("no_such_tool", "{}"),
        ("shell_exec", r#"{"command":"echo one"}"#),
        ("shell_exec", r#"{"command":"echo "#),
        ("write_file", r#"{"path":"f"}"#),
        ("write_file", r#"{"path":"f","content":"x"}"#),
        ("shell_exec", r#"{"command":"cat f"}"#),
    ]);
    let errors: Vec<bool> = results.iter().map(|result| result.starts_with("error: ")).collect();
    assert_eq!(errors, [true, false, true, true, false, false], "{results:?}");
    assert_eq!(results[5], "x\n\nexit: 0");
}

#[test]
fn bad_calls_end_the_turn_never() {
    let bad = || Reply::calls(&[("c1", "shell_exec", "{broken")]);
    let server = Server::start([bad(), bad(), bad(), Reply::calls(&[TOUCH]), Reply::text("done")]);
    let place = Place::new();
    let run = place.run(&server, &["-"], "do it");
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(server.requests().len(), 5, "{run}");
    assert!(place.path("ran").exists(), "{run}");
    assert_eq!(run.stderr, "", "{run}");
}

#[test]
fn a_failed_command_is_no_error_of_the_call() {
    let results = results(&[("shell_exec", r#"{"command":"echo oh; false"}"#)]);
    assert_eq!(results, ["oh\n\n\nexit: 1"]);
}

// ---- confirm

mod needs_confirm {
    use super::*;

    /// Runs one turn with this call under `confirm`, in FILE mode.
    fn confirmed(stdin: &str, args: &[&str]) -> (Place, String, Run) {
        confirmed_call(TOUCH.2, stdin, args)
    }

    /// The same with other arguments of `shell_exec`.
    fn confirmed_call(arguments: &str, stdin: &str, args: &[&str]) -> (Place, String, Run) {
        let call = Reply::calls(&[("c1", "shell_exec", arguments)]);
        let server = Server::start([call, Reply::text("done")]);
        let place = Place::new();
        place.write("prompt.txt", "do it");
        let run = place.run(&server, &[&["prompt.txt", "confirm=true"], args].concat(), stdin);
        assert_eq!(run.status, 0, "{run}");
        let answer = server.requests()[1].messages()[3]["content"].as_str().unwrap().to_string();
        (place, answer, run)
    }

    #[test]
    fn with_confirm_a_call_is_shown_and_runs_only_after_a_yes() {
        for answer in ["y\n", "yes\n"] {
            let (place, result, run) = confirmed(answer, &[]);
            assert!(run.stderr.contains(QUESTION), "{run}");
            assert!((run.stdout.clone() + &run.stderr).contains("touch ran"), "{run}");
            assert_eq!(result, "it ran\n\n\nexit: 0", "{run}");
            assert!(place.path("ran").exists(), "{run}");
        }
    }

    #[test]
    fn anything_but_a_yes_is_a_no() {
        for answer in ["n\n", "no\n", "\n", "yep\n", "yy\n", "maybe y\n", "0\n", "ja\n", "\u{ff}\n"]
        {
            let (place, result, run) = confirmed(answer, &[]);
            assert!(run.stderr.contains(QUESTION), "{run}");
            assert_eq!(result, "denied by the user", "{run}");
            assert!(!place.path("ran").exists(), "{run}");
        }
    }

    #[test]
    fn with_nobody_there_to_ask_the_answer_is_no() {
        let (place, result, run) = confirmed("", &[]);
        assert_eq!(result, "denied by the user", "{run}");
        assert!(!place.path("ran").exists(), "{run}");
        let (server, place) =
            (Server::start([Reply::calls(&[TOUCH]), Reply::text("done")]), Place::new());
        let run = place.run(&server, &["-", "confirm=true"], "do it"); // all input is the prompt
        assert_eq!(run.status, 0, "{run}");
        assert!(!place.path("ran").exists(), "{run}");
    }

    #[test]
    fn what_is_asked_about_is_the_call_as_it_was_understood() {
        let far_away = format!("{{{}\"command\":\"touch ran; echo it ran\"}}", "\n".repeat(60));
        for arguments in [
            far_away.as_str(), // off the screen
            r#"{"command":"\u0074ouch ran; echo it r\u0061n"}"#,
            r#"{"\u0063ommand":"touch ran; echo it ran"}"#,
            r#"{"command":"echo harmless","command":"touch ran; echo it ran"}"#, // the last one counts
            "{ \"command\" :\t\"touch ran; echo it ran\" }",
        ] {
            let (place, result, run) = confirmed_call(arguments, "y\n", &[]);
            assert_eq!(result, "it ran\n\n\nexit: 0", "{run}");
            assert!(place.path("ran").exists(), "{run}");
            let (shown, call) =
                (run.stdout.clone() + &run.stderr, r#"{"command":"touch ran; echo it ran"})"#);
            let calls: Vec<&str> = shown.split("shell_exec(").skip(1).collect();
            let right = !calls.is_empty() && calls.iter().all(|it| it.starts_with(call));
            assert!(right, "wanted to be asked about {call}{run}");
        }
    }

    #[test]
    fn each_call_is_asked_about() {
        let call = |id, command| (id, "shell_exec", command);
        let calls = [
            call("c1", r#"{"command":"echo one"}"#),
            call("c2", r#"{"command":"echo two"}"#),
            ("c3", "write_file", r#"{"path":"f","content":"x"}"#),
            ("c4", "write_file", r#"{"path":"g","content":"x"}"#),
        ];
        let server = Server::start([Reply::calls(&calls), Reply::text("done")]);
        let place = Place::new();
        let run = place.run(&server, &["confirm=true"], "do it\ny\nn\nn\nyes\n/quit\n");
        let answers: Vec<_> =
            server.requests()[1].messages()[3..].iter().map(|m| m["content"].clone()).collect();
        let (no, wrote) = ("denied by the user", "wrote 1 bytes to g (1 bytes in all)");
        assert_eq!(answers, ["one\n\n\nexit: 0", no, no, wrote], "{run}");
        assert_eq!(run.stderr.matches(QUESTION).count(), 4, "{run}");
        assert!(!place.path("f").exists() && place.path("g").exists(), "{run}");
    }

    #[test]
    fn an_interactive_session_goes_on_behind_the_answer() {
        let script = [Reply::calls(&[TOUCH]), Reply::text("one"), Reply::text("two")];
        let server = Server::start(script);
        let run = Place::new().run(&server, &["confirm=true"], "first\nn\nsecond\n");
        assert_eq!(run.status, 0, "{run}");
        let third = &server.requests()[2];
        assert_eq!(third.messages()[3]["content"], "denied by the user", "{run}");
        assert_eq!(third.messages()[5]["content"], "second", "{run}");
    }

    #[test]
    fn without_confirm_nothing_is_asked() {
        let server = Server::start([Reply::calls(&[TOUCH]), Reply::text("done")]);
        let place = Place::new();
        let run = place.run(&server, &["-", "confirm=false"], "do it");
        assert_eq!(run.stderr, "", "{run}");
        assert!(place.path("ran").exists(), "{run}");
    }

    #[test]
    fn a_command_of_the_users_is_not_asked_about() {
        let (server, place) = (Server::start([]), Place::new());
        let run = place.run(&server, &["-", "confirm=true"], "!touch ran");
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
        assert!(place.path("ran").exists(), "{run}");
    }

    mod needs_quiet {
        use super::*;

        #[test]
        fn with_quiet_the_call_is_shown_on_stderr() {
            for (answer, ran) in [("y\n", true), ("n\n", false)] {
                let (place, _, run) = confirmed(answer, &["quiet=true"]);
                assert_eq!(run.stdout, "done\n", "{run}");
                assert!(run.stderr.contains("touch ran; echo it ran"), "{run}");
                assert!(run.stderr.contains(QUESTION), "{run}");
                assert_eq!(place.path("ran").exists(), ran, "{run}");
            }
        }
    }

    mod needs_terminal {
        use super::*;

        #[test]
        fn on_a_terminal_the_answer_is_typed() {
            for (answer, ran) in [("y\r", true), ("yes\r", true), ("n\r", false), ("\r", false)] {
                let server = Server::start([Reply::calls(&[TOUCH]), Reply::text("done")]);
                let place = Place::new();
                let mut terminal = place.terminal(&server, &["confirm=true"]);
                terminal.type_text("do it\r");
                terminal.wait_for("touch ran");
                terminal.wait_for(QUESTION);
                assert!(!place.path("ran").exists());
                terminal.type_text(answer);
                terminal.wait_for("done");
                terminal.type_text("/quit\r");
                let run = terminal.finish();
                assert_eq!(place.path("ran").exists(), ran, "{run}");
            }
        }

        #[test]
        fn at_the_question_the_end_of_input_and_an_interrupt_run_nothing() {
            for key in [CTRL_D, CTRL_C] {
                let server = Server::start([Reply::calls(&[TOUCH])]);
                if key == CTRL_D {
                    server.push(Reply::text("done"));
                }
                let place = Place::new();
                let mut terminal = place.terminal(&server, &["confirm=true"]);
                terminal.type_text("do it\r");
                terminal.wait_for(QUESTION);
                terminal.key(key);
                terminal.wait_for("> ");
                terminal.type_text("!echo al''ive\r");
                terminal.wait_for("alive");
                terminal.type_text("/quit\r");
                let run = terminal.finish();
                assert_eq!(run.status, 0, "{run}");
                assert!(!place.path("ran").exists(), "{run}");
            }
        }

        #[test]
        fn what_was_typed_ahead_does_not_confirm() {
            let gate = Gate::default();
            let call =
                Reply::calls(&[("c", "shell_exec", r#"{"command":"touch ran"}"#)]).held(&gate);
            let (server, place) = (Server::start([call, Reply::text("done")]), Place::new());
            let mut terminal = place.terminal(&server, &["confirm=true"]);
            terminal.wait_for("> ");
            terminal.type_text("do it\r");
            server.wait_for_requests(1);
            terminal.type_text("y\r");
            terminal.wait_for("y\r\n"); // echoed, and so in the terminal's queue
            gate.open();
            terminal.wait_for("Run it? [y/N] ");
            terminal.type_text("n\r");
            terminal.wait_for("done");
            assert!(!place.path("ran").exists());
        }
    }
}
