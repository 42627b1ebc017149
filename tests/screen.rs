//! What a turn shows: its parts in order, colors, the status line, quiet runs (§9 of the contract).

#[macro_use]
mod common;

use common::*;
use serde_json::{Value, json};

const ECHO: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"echo hi"}"#);

const UNKNOWN: (&str, &str, &str) = ("c2", "fly", "{}");

/// Runs one prompt with these further arguments.
fn ask(args: &[&str], script: impl IntoIterator<Item = Reply>) -> Run {
    let server = Server::start(script);
    Place::new().run(&server, &[&["-"], args].concat(), "hello")
}

/// A streamed reply: a thought in two pieces, a text in two, then these calls.
fn thoughtful(calls: &[(&str, &str, &str)]) -> Reply {
    let mut reply = Reply::sse(&[]);
    for (key, text) in [
        ("reasoning_content", "I th"),
        ("reasoning_content", "ink\nhard"),
        ("content", "Let me "),
        ("content", "see"),
    ] {
        reply = reply.send(&[&delta(json!({key: text}))]);
    }
    for (index, (id, name, arguments)) in calls.iter().enumerate() {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"index": index, "id": id, "type": "function", "function": function});
        reply = reply.send(&[&delta(json!({"tool_calls": [call]}))]);
    }
    let reason = if calls.is_empty() { "stop" } else { "tool_calls" };
    reply.send(&[&finish(reason), "[DONE]"])
}

/// The lines that are not blank.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect()
}

/// The same without the token line.
fn parts(text: &str) -> Vec<&str> {
    lines(text).into_iter().filter(|line| !line.starts_with("[tokens: ")).collect()
}

// ---- Order

#[test]
fn each_part_begins_on_a_line_of_its_own() {
    for text in ["no newline", "one newline\n", "many newlines\n\n\n"] {
        let call = json!({"index": 0, "id": "c1", "type": "function",
            "function": {"name": "shell_exec", "arguments": r#"{"command":"printf out"}"#}});
        let pieces = [delta(json!({"content": text})), delta(json!({"tool_calls": [call]}))];
        let first = Reply::sse(&[&pieces[0], &pieces[1], &finish("tool_calls"), "[DONE]"]);
        let run = ask(&[], [first, Reply::text(text)]);
        let text = text.trim_end();
        let call = r#"[tool call: shell_exec({"command":"printf out"})]"#;
        let shown = [
            "...requesting...",
            text,
            call,
            "[tool result: shell_exec]",
            "out",
            "exit: 0",
            "...requesting...",
            text,
        ];
        assert_eq!(parts(&run.stdout), shown, "{run}");
    }
}

#[test]
fn a_call_is_shown_before_it_runs() {
    let wait =
        ("c1", "shell_exec", r#"{"command":"until [ -e go ]; do sleep 0.02; done; echo hi"}"#);
    let server = Server::start([Reply::calls(&[wait, ECHO]), Reply::text("done")]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("hello\n");
    live.wait_for_stdout("[tool call: shell_exec(");
    place.write("go", "");
    live.wait_for_stdout("[tool result: shell_exec]\nhi\n");
    live.wait_for_stdout("[tool call: shell_exec(");
    live.close_stdin();
    assert_eq!(live.finish().status, 0);
}

#[test]
fn a_cut_off_text_is_told_on_stderr() {
    let cut = Reply::sse(&[&delta(json!({"content": "half"})), &finish("length"), "[DONE]"]);
    let run = ask(&[], [cut]);
    assert_eq!(lines(&run.stderr), ["[cut off: token limit]"], "{run}");
    assert!(run.stdout.contains("half"), "{run}");
}

// ---- The status

#[test]
fn in_a_pipe_the_status_is_a_line_before_each_reply() {
    let gate = Gate::default();
    let server = Server::start([Reply::calls(&[ECHO]), Reply::text("done").held(&gate)]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("hello\n");
    live.wait_for_stdout("...requesting...\n");
    live.wait_for_stdout("exit: 0\n...requesting...\n"); // shown at once, not with the reply
    gate.open();
    live.close_stdin();
    let run = live.finish();
    assert_eq!(run.stdout.matches("...requesting...\n").count(), 2, "{run}");
}

// ---- What goes with a part that a port may lack

mod needs_reasoning {
    use super::*;

    /// A whole reply as JSON, with this message.
    fn whole(message: Value) -> Reply {
        Reply::json(json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))
    }

    #[test]
    fn the_parts_of_a_turn_are_shown_in_the_order_of_events() {
        let run = ask(&[], [thoughtful(&[ECHO, UNKNOWN]), Reply::text("done")]);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
        let shown = parts(&run.stdout);
        let expected = [
            "...requesting...",
            "--- reasoning start ---",
            "I think",
            "hard",
            "--- reasoning end ---",
            "Let me see",
            r#"[tool call: shell_exec({"command":"echo hi"})]"#,
            "[tool result: shell_exec]",
            "hi",
            "exit: 0",
            "[tool call: fly({})]",
            "[tool result: fly]",
        ];
        assert_eq!(shown[..expected.len()], expected, "{run}");
        assert!(shown[expected.len()].starts_with("error: "), "{run}");
        assert_eq!(shown[expected.len() + 1..], ["...requesting...", "done"], "{run}");
    }

    #[test]
    fn a_reply_that_is_not_streamed_is_shown_in_the_same_order() {
        let function = json!({"name": ECHO.1, "arguments": ECHO.2});
        let call = json!({"id": "c1", "type": "function", "function": function});
        let message = json!({"role": "assistant", "content": "Let me see", "tool_calls": [call],
        "reasoning_content": "I think\nhard"});
        let streamed = ask(&[], [thoughtful(&[ECHO]), Reply::text("done")]);
        let run = ask(&["stream=false"], [whole(message), Reply::text("done")]);
        assert_eq!(run.stdout, streamed.stdout, "{run}");
        assert!(run.stdout.contains("Let me see"), "{run}");
    }

    #[test]
    fn reasoning_is_shown_under_both_its_names_and_between_its_markers_only() {
        let shown = ["--- reasoning start ---", "I think", "--- reasoning end ---", "done"];
        for message in [
            json!({"reasoning_content": "I think", "content": "done"}),
            json!({"reasoning": "I think", "content": "done"}),
            json!({"reasoning_content": "I think", "reasoning": "I think", "content": "done"}),
            json!({"reasoning_content": "", "reasoning": "I think", "content": "done"}),
            json!({"reasoning_content": null, "reasoning": "I think", "content": "done"}),
        ] {
            let streamed = Reply::sse(&[&delta(message.clone()), &finish("stop"), "[DONE]"]);
            for reply in [whole(message.clone()), streamed] {
                let run = ask(&[], [reply]);
                assert_eq!(lines(&run.stdout)[1..], shown, "{run}");
            }
        }
    }

    #[test]
    fn without_reasoning_there_are_no_markers() {
        for extra in [json!({}), json!({"reasoning": null}), json!({"reasoning_content": ""})] {
            let mut message = json!({"role": "assistant", "content": "done"});
            message.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let run = ask(&[], [whole(message)]);
            assert_eq!(lines(&run.stdout), ["...requesting...", "done"], "{run}");
        }
    }

    #[test]
    fn reasoning_ends_before_a_call_and_before_an_error() {
        let thought = delta(json!({"reasoning_content": "I think"}));
        let call = json!({"index": 0, "id": "c1", "type": "function",
        "function": {"name": ECHO.1, "arguments": ECHO.2}});
        let call = delta(json!({"tool_calls": [call]}));
        let reply = Reply::sse(&[&thought, &call, &finish("tool_calls"), "[DONE]"]);
        let run = ask(&[], [reply, Reply::text("done")]);
        let shown = ["--- reasoning start ---", "I think", "--- reasoning end ---"];
        assert_eq!(lines(&run.stdout)[1..4], shown, "{run}");
        assert!(lines(&run.stdout)[4].starts_with("[tool call: shell_exec("), "{run}");
        let run = ask(&[], [Reply::sse(&[&thought, &finish("stop"), "[DONE]"])]);
        assert_eq!(lines(&run.stdout)[1..], shown, "{run}");
        assert_eq!((run.status, lines(&run.stderr).len()), (1, 1), "{run}");
    }
}

mod needs_token_line {
    use super::*;

    #[test]
    fn the_token_line_is_the_last_part_of_a_turn() {
        let run = ask(&[], [Reply::calls(&[ECHO]), Reply::text("done")]);
        let shown = lines(&run.stdout);
        let last = "[tokens: 20 prompt (0 cached, 20 uncached) + 10 completion | \
        context: 10/200000 (0.0%)]";
        assert_eq!(shown.last(), Some(&last), "{run}");
        assert_eq!(shown.len(), parts(&run.stdout).len() + 1, "{run}");
    }
}

mod needs_streaming {
    use super::*;

    mod needs_reasoning {
        use super::*;

        #[test]
        fn text_is_shown_as_it_arrives() {
            let (thought, text, end) = (Gate::default(), Gate::default(), Gate::default());
            let reply =
                Reply::sse(&[&delta(json!({"reasoning_content": "I think"}))]).wait(&thought);
            let reply = reply.send(&[&delta(json!({"content": "some "}))]).wait(&text);
            let reply = reply.send(&[&delta(json!({"content": "text"}))]).wait(&end);
            let server = Server::start([reply.send(&[&finish("stop"), "[DONE]"])]);
            let place = Place::new();
            let mut live = place.start(&server, &[]);
            live.send("hello\n");
            for (shown, gate) in [("I think", thought), ("some ", text), ("text", end)] {
                live.wait_for_stdout(shown);
                gate.open();
            }
            live.close_stdin();
            assert_eq!(live.finish().status, 0);
        }
    }
}

mod needs_retries {
    use super::*;

    mod needs_streaming {
        use super::*;

        #[test]
        fn errors_and_retries_go_to_stderr() {
            let half = Reply::sse(&[&delta(json!({"content": "half"}))]).cut();
            let run = ask(&[], [half, Reply::status(503, "busy"), Reply::status(401, "no key")]);
            let errors = lines(&run.stderr);
            assert_eq!(errors.len(), 3, "{run}");
            assert!(errors[0].starts_with("[retry 1/9 in 1s: "), "{run}");
            assert_eq!(errors[1], "[retry 2/9 in 1s: HTTP 503: busy]", "{run}");
            assert_eq!(errors[2], "API error: HTTP 401: no key", "{run}");
            let shown: Vec<_> =
                lines(&run.stdout).into_iter().filter(|l| *l != "...requesting...").collect();
            assert_eq!(shown, ["half"], "{run}");
        }
    }
}

mod needs_terminal {
    use super::*;

    /// Whether on a terminal the status gives way to a reply's first part.
    fn status_gives_way_to(replies: &[(Reply, &str)]) {
        let place = Place::new();
        place.write("p.txt", "hello");
        for (reply, first) in replies {
            let reply = reply.clone();
            let gate = Gate::default();
            let server = Server::start([reply.held(&gate), Reply::text("done")]);
            place.config(&server, "");
            let mut terminal = place.terminal(&server, &["p.txt"]);
            terminal.wait_for("...requesting...");
            let shown = terminal.screen();
            assert_eq!(shown.lines().last(), Some("...requesting..."), "in place: {shown}");
            gate.open();
            let run = terminal.finish();
            let shown = screen(&run.stdout);
            assert_eq!(run.status, 0, "{run}");
            assert!(!shown.contains("requesting") && lines(&shown)[0].starts_with(first), "{run}");
        }
    }

    #[test]
    fn on_a_terminal_the_status_is_erased_when_the_reply_starts() {
        status_gives_way_to(&[
            (Reply::calls(&[ECHO]), "[tool call: shell_exec("),
            (Reply::text("text"), "text"),
        ]);
    }

    #[test]
    fn on_a_terminal_the_status_is_erased_before_an_error_and_an_interrupt() {
        let place = Place::new();
        place.write("p.txt", "hello");
        let server = Server::start([Reply::status(401, "no"), Reply::hang()]);
        for (end, status) in [("API error: HTTP 401: no", 1), ("[interrupted]", 130)] {
            let mut terminal = place.terminal(&server, &["p.txt"]);
            terminal.wait_for("...requesting...");
            if status == 130 {
                terminal.key(CTRL_C);
            }
            let run = terminal.finish();
            let shown = screen(&run.stdout);
            assert_eq!(run.status, status, "{run}");
            assert!(!shown.contains("requesting"), "{shown}{run}");
            assert!(lines(&shown).iter().any(|line| line.starts_with(end)), "{shown}{run}");
        }
    }

    mod needs_reasoning {
        use super::*;

        #[test]
        fn on_a_terminal_the_status_is_erased_when_the_reasoning_starts() {
            status_gives_way_to(&[(thoughtful(&[ECHO]), "--- reasoning start ---")]);
        }
    }

    mod needs_streaming {
        use super::*;

        #[test]
        fn on_a_terminal_an_error_begins_on_a_line_of_its_own() {
            let place = Place::new();
            place.write("p.txt", "hello");
            let half = Reply::sse(&[&delta(json!({"content": "half"}))]);
            let error = r#"{"error":{"code":400,"message":"too long"}}"#;
            let server = Server::start([half.send(&[error])]);
            let run = place.terminal(&server, &["p.txt"]).finish();
            let shown = screen(&run.stdout);
            assert_eq!(lines(&shown), ["half", "API error: HTTP 400: too long"], "{run}");
        }
    }
}

mod needs_color {
    use super::*;

    /// The text in pieces, each with the ANSI style in which it is shown.
    fn pieces(raw: &str) -> Vec<(String, String)> {
        let (mut style, mut pieces): (String, Vec<(String, String)>) = Default::default();
        for (n, part) in raw.split("\u{1b}[").enumerate() {
            let end = part.find(|c: char| c.is_ascii_alphabetic()).filter(|_| n > 0);
            let (sequence, text) = end.map_or(("", part), |end| part.split_at(end + 1));
            match sequence.strip_suffix('m') {
                Some("" | "0") => style.clear(),
                Some(more) => {
                    style = if style.is_empty() { more.into() } else { style + ";" + more }
                }
                None => {}
            }
            match pieces.last_mut() {
                Some((last, before)) if *last == style => *before += text,
                _ if text.is_empty() => {}
                _ => pieces.push((style.clone(), text.into())),
            }
        }
        pieces
    }

    /// The style of the first such text; it has to be all of a line, or of several.
    fn style_of(raw: &str, text: &str) -> String {
        let pieces = pieces(raw);
        let has = |piece: &&(String, String)| piece.1.contains(text);
        let (style, _) = pieces.iter().find(has).unwrap_or_else(|| panic!("{text:?}: {pieces:?}"));
        style.clone()
    }

    #[test]
    fn a_tool_error_of_any_kind_is_red() {
        for (name, arguments) in [
            ("shell_exec", "{\"comm"),
            ("shell_exec", "{}"),
            ("shell_exec", r#"{"command":7}"#),
            ("write_file", r#"{"path":"/","content":"x"}"#),
            ("", "{}"),
        ] {
            let call = Reply::calls(&[("c1", name, arguments)]);
            let run = ask(&["color=always"], [call, Reply::text("done")]);
            assert_eq!(style_of(&run.stdout, "error: "), "31", "{run}");
        }
    }

    #[test]
    fn in_a_pipe_there_are_no_colors_by_default() {
        for args in [&[][..], &["color=auto"], &["color=never"]] {
            let script = [thoughtful(&[ECHO, UNKNOWN]), Reply::status(401, "no")];
            let run = ask(args, script);
            assert!(!(run.stdout.clone() + &run.stderr).contains('\u{1b}'), "{run}");
            assert!(run.stdout.contains("[tool call: "), "{run}");
        }
    }

    mod needs_reasoning {
        use super::*;

        #[test]
        fn with_color_always_each_part_has_its_color() {
            let run = ask(&["color=always"], [thoughtful(&[ECHO, UNKNOWN]), Reply::text("done")]);
            let status = style_of(&run.stdout, "...requesting...");
            let bold_dark = ["1;90", "90;1", "1;30", "30;1", "1;2", "2;1"];
            assert!(bold_dark.contains(&status.as_str()), "{status}{run}");
            for (text, style) in [
                ("--- reasoning start ---", "36"), // cyan
                ("I think\nhard", "2"),            // dim
                ("--- reasoning end ---", "36"),
                ("Let me see", ""),
                (r#"[tool call: shell_exec({"command":"echo hi"})]"#, "33"), // yellow
                ("[tool result: shell_exec]", "32"),                         // green
                ("hi\n\n\nexit: 0", "2"),
                ("[tool call: fly({})]", "33"),
                ("[tool result: fly]", "32"),
                ("error: ", "31"), // red
                ("done", ""),
            ] {
                assert_eq!(style_of(&run.stdout, text), style, "{text}{run}");
            }
            let last = pieces(&run.stdout).pop().unwrap();
            assert_eq!(last.0, "", "nothing stays colored{run}");
        }
    }

    mod needs_retries {
        use super::*;

        #[test]
        fn with_color_always_errors_and_retries_are_red() {
            let script = [Reply::status(503, "busy"), Reply::status(401, "no key")];
            let run = ask(&["color=always"], script);
            assert_eq!(style_of(&run.stderr, "[retry 1/9 in 1s: HTTP 503: busy]"), "31", "{run}");
            assert_eq!(style_of(&run.stderr, "API error: HTTP 401: no key"), "31", "{run}");
            assert_eq!(pieces(&run.stderr).pop().unwrap().0, "", "{run}");
        }
    }

    mod needs_sessions {
        use super::*;

        #[test]
        fn nothing_that_is_sent_or_saved_is_colored() {
            let server = Server::start([thoughtful(&[ECHO, UNKNOWN]), Reply::text("done")]);
            let place = Place::new();
            let run = place.run(&server, &["color=always"], "hello\n");
            assert!(run.stdout.contains('\u{1b}'), "{run}");
            let (sent, saved) = (server.requests()[1].messages().to_vec(), place.session());
            for message in sent.iter().chain(saved["messages"].as_array().unwrap()).skip(1) {
                assert!(!message.to_string().contains("\\u001b"), "{message}{run}");
            }
        }
    }

    mod needs_terminal {
        use super::*;

        /// All that a terminal got from a turn with every part, and an error.
        fn on_a_terminal(variables: &[(&str, &str)], args: &[&str]) -> String {
            let (server, place) =
                (Server::start([thoughtful(&[ECHO]), Reply::status(401, "no")]), Place::new());
            place.write("p.txt", "hello");
            let mut mb = place.mb(&server, &[&["p.txt"], args].concat());
            for (name, value) in variables {
                mb = mb.env(name, value);
            }
            let run = mb.terminal(80, 24).finish();
            assert_eq!(run.status, 1, "{run}");
            run.stdout.replace('\r', "")
        }

        #[test]
        fn on_a_terminal_there_are_colors_by_default() {
            for variables in [&[][..], &[("NO_COLOR", ""), ("BANTAM_NO_COLOR", "")]] {
                let raw = on_a_terminal(variables, &[]);
                for (text, style) in
                    [("Let me see", ""), ("[tool call: ", "33"), ("API error: HTTP 401: no", "31")]
                {
                    assert_eq!(style_of(&raw, text), style, "{text} {raw}");
                }
            }
        }

        #[test]
        fn on_a_terminal_colors_can_be_turned_off() {
            assert!(on_a_terminal(&[], &[]).contains("\u{1b}[2m"));
            for (variables, args) in [
                (&[("NO_COLOR", "1")][..], &[][..]),
                (&[("BANTAM_NO_COLOR", "1")], &[]),
                (&[("NO_COLOR", "0")], &["color=auto"]),
                (&[], &["color=never"]),
            ] {
                let raw = on_a_terminal(variables, args);
                let colored: Vec<_> =
                    pieces(&raw).into_iter().filter(|piece| !piece.0.is_empty()).collect();
                assert_eq!(colored, [], "{variables:?} {args:?} {raw}");
            }
        }

        #[test]
        fn color_always_wins_over_the_environment() {
            let raw =
                on_a_terminal(&[("NO_COLOR", "1"), ("BANTAM_NO_COLOR", "1")], &["color=always"]);
            assert_eq!(style_of(&raw, "[tool call: "), "33", "{raw}");
        }

        /// A turn with every part, and an error, on a terminal but for one of the two outputs,
        /// which goes into a file: what the terminal got, and the file.
        fn with_one_output_in_a_file(redirect: fn()) -> (String, String) {
            let (server, place) =
                (Server::start([thoughtful(&[ECHO]), Reply::status(401, "no")]), Place::new());
            place.write("p.txt", "hello");
            let run = place.mb(&server, &["p.txt"]).setup(redirect).terminal(80, 24).finish();
            assert_eq!(run.status, 1, "{run}");
            (run.stdout.replace('\r', ""), place.read("file"))
        }

        /// Makes one of mb's outputs the file `file`.
        fn redirect(output: i32) {
            let flags = libc::O_CREAT | libc::O_WRONLY;
            unsafe { libc::dup2(libc::open(c"file".as_ptr(), flags, 0o644), output) };
        }

        #[test]
        fn errors_in_a_file_have_no_color_where_standard_output_is_a_terminal() {
            let (terminal, file) = with_one_output_in_a_file(|| redirect(2));
            assert_eq!(file, "API error: HTTP 401: no\n");
            assert_eq!(style_of(&terminal, "[tool call: "), "33", "{terminal:?}");
        }

        #[test]
        fn errors_on_a_terminal_have_their_color_where_standard_output_is_a_file() {
            let (terminal, file) = with_one_output_in_a_file(|| redirect(1));
            assert!(file.contains("[tool call: ") && !file.contains('\u{1b}'), "{file:?}");
            assert_eq!(style_of(&terminal, "API error: HTTP 401: no"), "31", "{terminal:?}");
        }
    }
}

mod needs_quiet {
    use super::*;

    #[test]
    fn of_a_quiet_turn_stdout_has_the_final_answer_and_nothing_else() {
        let final_answer = thoughtful(&[]);
        for script in [vec![final_answer.clone()], vec![thoughtful(&[ECHO, UNKNOWN]), final_answer]]
        {
            for args in [&["quiet=true"][..], &["quiet=true", "color=always"]] {
                let run = ask(args, script.clone());
                assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
                assert_eq!(run.stdout, "Let me see\n", "{run}");
            }
        }
    }

    #[test]
    fn a_quiet_turn_that_fails_has_nothing_on_stdout_and_its_error_on_stderr() {
        let call = || Reply::calls(&[ECHO]);
        for (script, error) in [
            (vec![Reply::status(401, "no")], "API error: HTTP 401: no"),
            (vec![thoughtful(&[ECHO]), Reply::status(401, "no")], "API error: HTTP 401: no"),
            (vec![call(), call()], "iterations"), // their limit
        ] {
            let run = ask(&["quiet=true", "max_al_iterations=2"], script);
            assert_eq!((run.status, run.stdout.as_str()), (1, ""), "{run}");
            assert!(run.stderr.contains(error), "{run}");
            assert_eq!(lines(&run.stderr).len(), 1, "{run}");
        }
    }

    #[test]
    fn in_a_quiet_session_answers_and_shell_lines_are_shown() {
        let server = Server::start([Reply::calls(&[ECHO]), Reply::text("one"), Reply::text("two")]);
        let run = Place::new().run(&server, &["quiet=true"], "first\n!echo bang\nsecond\n");
        assert_eq!(lines(&run.stdout), ["one", "bang", "exit: 0", "two"], "{run}");
    }

    mod needs_retries {
        use super::*;

        #[test]
        fn a_quiet_answer_is_whole_after_retries() {
            let half = Reply::sse(&[&delta(json!({"content": "half"}))]).cut();
            let run = ask(&["quiet=true"], [half, Reply::text("the answer")]);
            assert_eq!((run.status, run.stdout.as_str()), (0, "the answer\n"), "{run}");
            assert!(run.stderr.starts_with("[retry 1/9 in 1s: "), "{run}");
        }
    }

    mod needs_terminal {
        use super::*;

        #[test]
        fn on_a_terminal_a_quiet_turn_shows_its_answer_alone() {
            let place = Place::new();
            place.write("p.txt", "hello");
            let server = Server::start([thoughtful(&[ECHO]), Reply::text("done")]);
            let run = place.terminal(&server, &["p.txt", "quiet=true"]).finish();
            assert_eq!((run.status, run.stdout.as_str()), (0, "done\r\n"), "{run}");
        }
    }
}
