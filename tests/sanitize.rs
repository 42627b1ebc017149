//! Which characters get through, on every path from outside (§8 of the contract).

#[macro_use]
mod common;

use std::fs;

use common::*;
use serde_json::{Value, json};

/// Dropped, by Unicode category: control, format, private, unassigned, separators, other spaces.
const DROPPED: [&str; 7] = [
    "\0\u{1}\u{7}\u{8}\u{b}\u{c}\r\u{1b}\u{1f}\u{7f}\u{80}\u{85}\u{9b}\u{9f}",
    "\u{ad}\u{600}\u{61c}\u{6dd}\u{70f}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{202a}\
        \u{202b}\u{202c}\u{202d}\u{202e}\u{2060}\u{2061}\u{2064}\u{2066}\u{2067}\u{2068}\u{2069}\
        \u{206a}\u{206f}\u{feff}\u{fff9}\u{fffb}\u{110bd}\u{1d173}\u{e0001}\u{e0020}\u{e0041}\u{e007f}",
    "\u{e000}\u{f8ff}\u{f0000}\u{10fffd}",
    "\u{378}\u{fdd0}\u{fffe}\u{ffff}\u{1fffe}\u{2ffff}\u{10ffff}",
    "\u{2028}",
    "\u{2029}",
    "\u{a0}\u{1680}\u{2000}\u{2003}\u{2007}\u{2009}\u{200a}\u{202f}\u{205f}\u{3000}",
];

/// Kept: ASCII, letters, marks, numbers, punctuation, symbols; tab and newline.
const KEPT: &str = "\t !\"#$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~ \u{e9}\u{df}\u{3a9}\u{416}\u{5d0}\
    \u{627}\u{e01}\u{6f22}\u{5b57}\u{3042}\u{d55c}\u{2b0}\u{1d400}\u{20000} e\u{301} \u{e01}\u{e31} \
    \u{915}\u{93f} a\u{20dd} \u{bd}\u{663}\u{2167}\u{b2} \u{ab}\u{2013}\u{201c}\u{203f}\u{3002} \
    \u{20ac}\u{2211}\u{a9}\u{2588}\u{2713}\u{fffd} \u{1f389}\u{1f44d}\u{1f3fd} \u{2764}\u{fe0f}\n\
    \u{301}a mark at a line's start\n";

/// `a`, all characters that are dropped, `b`.
fn dirty() -> String {
    format!("a{}b", DROPPED.concat())
}

/// A kept character between any two dropped ones: a sequence of dots is left.
fn dotted() -> (String, String) {
    let dropped = DROPPED.concat();
    let text = dropped.chars().map(|c| format!("{c}.")).collect();
    (text, ".".repeat(dropped.chars().count()))
}

/// Characters that fool a terminal or a reader, around `tail`.
const ATTACK: &str =
    "\u{1b}]0;title\u{7}he\u{202e}ad\u{1b}[2J\u{9b}31m\u{200b}\u{e0041}\r\u{a0}tail";
const CLEAN: &str = "]0;titlehead[2J31mtail";

/// Fails if a text has a character that is dropped.
fn assert_clean(text: &str, run: &Run) {
    let dropped = DROPPED.concat();
    let found: Vec<char> = text.chars().filter(|c| dropped.contains(*c)).collect();
    assert!(found.is_empty(), "{found:?}{run}");
}

fn call(name: &str, arguments: Value) -> Reply {
    Reply::calls(&[("c1", name, &arguments.to_string())])
}

/// Runs one prompt in a place of its own.
fn ask(script: impl IntoIterator<Item = Reply>) -> (Server, Place, Run) {
    let (server, place) = (Server::start(script), Place::new());
    let run = place.run(&server, &["-"], "do it");
    (server, place, run)
}

/// The content of the request's last message.
fn last(request: &Request) -> Value {
    request.messages().last().unwrap()["content"].clone()
}

// ---- Parameters

#[test]
fn the_content_of_a_file_keeps_what_is_printable_and_nothing_else() {
    let (text, dots) = dotted();
    for (content, written) in [(&dirty(), "ab"), (&text, &dots), (&KEPT.to_string(), KEPT)] {
        let arguments = json!({"path": "f", "content": content});
        let (server, place, run) = ask([call("write_file", arguments), Reply::text("done")]);
        assert_eq!(place.read("f"), written, "{run}");
        let told = format!("wrote {n} bytes to f ({n} bytes in all)", n = written.len());
        assert_eq!(last(&server.requests()[1]), told, "{run}");
    }
}

#[test]
fn an_escaped_character_does_not_slip_through() {
    for escaped in [
        r"\u202e",
        r"\u001b",
        r"\u200b",
        r"\u200d",
        r"\ufeff",
        r"\u00ad",
        r"\u00a0",
        r"\u0000",
        r"\u007f",
        r"\u009b",
        r"\r",
        r"\b",
        r"\f",
        r"\u2028",
        r"\u3000",
        r"\udb40\udc41",
        r"\ue000",
        r"\uFFFF",
        r"\u0378",
        r"\u202E",
    ] {
        let write = format!(r#"{{"path":"f{escaped}","content":"a{escaped}b\u00e9\t\n"}}"#);
        let shell = format!(r#"{{"command":"printf '%s' 'a{escaped}b' > g"}}"#);
        let calls = [("c1", "write_file", write.as_str()), ("c2", "shell_exec", &shell)];
        let (_, place, run) = ask([Reply::calls(&calls), Reply::text("done")]);
        assert_eq!(place.read("f"), "ab\u{e9}\t\n", "{escaped}{run}");
        assert_eq!(place.read("g"), "ab", "{escaped}{run}");
    }
}

#[test]
fn a_command_and_a_path_keep_what_is_printable_and_nothing_else() {
    let name = "e\u{301} \u{6f22}\u{1f389}";
    let command = json!({"command": format!("printf '%s' '{}' > g", dirty())});
    let path = json!({"path": format!("\u{1b}{}\u{202e}{name}", dirty()), "content": "x"});
    let kept = json!({"command": format!("cat > h <<'END'\n{KEPT}END")});
    for (tool, arguments) in [("shell_exec", command), ("write_file", path), ("shell_exec", kept)] {
        let (server, place, run) = ask([call(tool, arguments), Reply::text("done")]);
        let told = last(&server.requests()[1]).as_str().unwrap().to_string();
        let files: Vec<_> = fs::read_dir(place.work()).unwrap().flatten().collect();
        let names: Vec<_> = files.iter().map(|entry| entry.file_name()).collect();
        match told.strip_prefix("wrote 1 bytes to ") {
            Some(told) => assert_eq!(told, format!("ab{name} (1 bytes in all)"), "{run}"),
            None if place.path("g").exists() => assert_eq!(place.read("g"), "ab", "{run}"),
            None => assert_eq!(place.read("h"), KEPT, "{run}"),
        }
        assert_eq!(names.len(), 2, "{names:?}{run}");
    }
}

#[test]
fn a_shown_call_is_clean_but_stored_as_it_came() {
    let arguments = "{\"command\":\"echo hi # \u{202e}\u{a0}\u{e0041}\\u001b[2J\"}";
    let (server, _, run) =
        ask([Reply::calls(&[("c1", "shell_exec", arguments)]), Reply::text("done")]);
    let shown = r#"[tool call: shell_exec({"command":"echo hi # \u001b[2J"})]"#;
    assert!(run.stdout.contains(shown), "{run}");
    let stored = server.requests()[1].messages()[2]["tool_calls"][0].clone();
    assert_eq!(stored["function"]["arguments"], arguments, "{run}");
    assert_clean(&run.stdout, &run);
}

#[test]
fn the_name_of_a_called_tool_is_clean_where_it_is_shown() {
    let name = format!("{ATTACK}_tool");
    let (server, _, run) = ask([call(&name, json!({})), Reply::text("done")]);
    assert!(run.stdout.contains(&format!("[tool call: {CLEAN}_tool({{}})]")), "{run}");
    assert_clean(&run.stdout, &run);
    let told = last(&server.requests()[1]).as_str().unwrap().to_string();
    assert!(told.starts_with("error: "), "{run}");
    assert_clean(&told, &run);
}

// ---- Tool results

#[test]
fn the_output_of_a_command_is_clean_where_it_is_shown_and_sent() {
    let (text, dots) = dotted();
    for (output, kept) in [(&dirty(), "ab"), (&text, &dots), (&KEPT.to_string(), KEPT)] {
        let server = Server::start([
            call("shell_exec", json!({"command": "cat output"})),
            Reply::text("done"),
        ]);
        let place = Place::new();
        place.write("output", output);
        let run = place.run(&server, &["-"], "do it");
        assert_eq!(last(&server.requests()[1]), format!("{kept}\n\nexit: 0"), "{run}");
        assert!(run.stdout.contains(&format!("\n{kept}\n\nexit: 0\n")), "{run}");
        assert_clean(&run.stdout, &run);
    }
}

#[test]
fn lines_that_end_in_crlf_end_in_lf() {
    let command = json!({"command": r"printf 'one\r\ntwo\r\n'"});
    let (server, _, run) = ask([call("shell_exec", command), Reply::text("done")]);
    assert_eq!(last(&server.requests()[1]), "one\ntwo\n\n\nexit: 0", "{run}");
}

#[test]
fn a_users_own_command_shows_clean_output() {
    let (server, place) = (Server::start([]), Place::new());
    place.write("output", format!("{ATTACK}\n{KEPT}"));
    let run = place.run(&server, &["-"], "!cat output");
    assert!(run.stdout.contains(&format!("{CLEAN}\n{KEPT}")), "{run}");
    assert_clean(&run.stdout, &run);
}

#[test]
fn the_error_of_a_tool_is_clean() {
    let calls = [
        ("write_file", json!({"path": format!("{ATTACK}/"), "content": "x", "offset": 5})),
        ("write_file", json!({"path": "folder", "content": "x", "offset": "\u{1b}[2J\u{202e}"})),
        ("shell_exec", json!({"command": [ATTACK]})),
    ];
    for (tool, arguments) in calls {
        let (server, _, run) = ask([call(tool, arguments), Reply::text("done")]);
        let told = last(&server.requests()[1]).as_str().unwrap().to_string();
        assert!(told.starts_with("error: "), "{run}");
        assert_clean(&told, &run);
        assert_clean(&run.stdout, &run);
    }
}

// ---- The model's words

#[test]
fn the_text_of_the_model_is_shown_clean_and_stored_as_it_came() {
    let (text, dots) = dotted();
    for (said, shown) in [
        (dirty(), "ab"),
        (text, dots.as_str()),
        (KEPT.to_string(), KEPT),
        (format!("{ATTACK}\n"), &format!("{CLEAN}\n")),
    ] {
        for reply in [Reply::text(&said), Reply::text(&said).split_every(5)] {
            let server = Server::start([reply, Reply::text("two")]);
            let run = Place::new().run(&server, &[], "first\nsecond\n");
            assert!(run.stdout.contains(&format!("\n{shown}")), "{run}");
            assert_clean(&run.stdout, &run);
            assert_eq!(server.requests()[1].messages()[2]["content"], said, "{run}");
        }
    }
}

#[test]
fn a_mark_that_begins_a_delta_is_kept() {
    let pieces = ["e", "\u{301}", "\u{fe0f}", "\u{e31}", "!"];
    let deltas: Vec<String> = pieces.iter().map(|text| delta(json!({"content": text}))).collect();
    let mut events: Vec<&str> = deltas.iter().map(String::as_str).collect();
    let end = finish("stop");
    events.extend([end.as_str(), "[DONE]"]);
    let (_, _, run) = ask([Reply::sse(&events)]);
    assert!(run.stdout.contains(&pieces.concat()), "{run}");
}

// ---- Errors

#[test]
fn the_error_text_of_a_server_is_clean() {
    let text = format!("{ATTACK} {}", dirty());
    let error = json!({"error": {"message": text, "code": 400}}).to_string();
    let location = "/\u{9b}31m\u{202e}\u{a0}elsewhere";
    for reply in [
        Reply::status(400, &error),
        Reply::status(400, &text),
        Reply::status(200, &error),
        Reply::sse(&[&delta(json!({"content": "x"})), &error]),
        Reply::status(301, "").header("Location", location),
        Reply::sse(&[&finish(&format!("odd{ATTACK}")), "[DONE]"]), // an empty reply
    ] {
        let (_, _, run) = ask([reply]);
        assert_eq!(run.status, 1, "{run}");
        assert!(!run.stderr.is_empty(), "{run}");
        assert_clean(&(run.stdout.clone() + &run.stderr), &run);
    }
}

#[test]
fn what_a_configuration_error_or_a_usage_error_quotes_is_clean() {
    let (server, place) = (Server::start([]), Place::new());
    place.write("model.cfg", format!("{}\n", ATTACK.replace('\r', "")));
    let run = place.run(&server, &["-"], "hello");
    assert_eq!(run.status, 1, "{run}");
    assert_clean(&run.stderr, &run);
    fs::remove_file(place.path("model.cfg")).unwrap();
    for argument in [ATTACK.to_string(), format!("-{ATTACK}"), format!("timeout={ATTACK}")] {
        let run = place.run(&server, &[&argument], "");
        assert_ne!(run.status, 0, "{run}");
        assert_clean(&run.stderr, &run);
    }
}

// ---- Left alone

#[test]
fn the_prompts_of_the_user_are_left_alone() {
    let prompt = format!("x{}{KEPT}x", dirty().replace(['\n', '\\'], ""));
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.write("prompt.txt", &prompt);
    place.run(&server, &["prompt.txt"], "");
    assert_eq!(last(&server.requests()[0]), prompt);
    let line = "head \u{202e}\u{1b}[2J\u{200b}\u{a0}\u{e0041} tail";
    let server = Server::start([Reply::text("done")]);
    let run = Place::new().run(&server, &[], &format!("{line}\n"));
    assert_eq!(last(&server.requests()[0]), line, "{run}");
}

// ---- What needs more than the core

mod needs_sessions {
    use super::*;

    #[test]
    fn summaries_in_the_list_of_sessions_are_clean() {
        let (server, place) = (Server::start([]), Place::new());
        fs::create_dir_all(place.sessions()).unwrap();
        let messages = json!([{"role": "user", "content": "hi"}]);
        let session =
            json!({"summary": format!("{ATTACK} \u{6f22}e\u{301}"), "messages": messages});
        fs::write(place.sessions().join("named.json"), session.to_string()).unwrap();
        let run = place.run(&server, &[], "/list\n");
        let line = run.stdout.lines().find(|line| line.starts_with("  named ")).expect("a line");
        assert!(line.ends_with(&format!("{CLEAN} \u{6f22}e\u{301}")), "{run}");
        assert_clean(&run.stdout, &run);
    }

    #[test]
    fn a_prompt_that_serves_as_a_summary_is_clean_in_the_list() {
        let (server, place) = (Server::start([Reply::text("one")]), Place::new());
        let run = place.run(&server, &[], "he\u{202e}ad \u{1b}[2J tail\n/list\n");
        assert!(run.stdout.contains("head [2J tail"), "{run}");
        assert_clean(&run.stdout, &run);
    }

    #[test]
    fn the_messages_of_a_loaded_session_are_left_alone() {
        let server = Server::start([Reply::text("done")]);
        let place = Place::new();
        fs::create_dir_all(place.sessions()).unwrap();
        let old = json!([{"role": "user", "content": ATTACK}, {"role": "assistant", "content": dirty(),
            "reasoning_content": ATTACK}]);
        let session = json!({"summary": "s", "messages": old}).to_string();
        fs::write(place.sessions().join("old.json"), session).unwrap();
        let run = place.run(&server, &[], "/load old\nsecond\n");
        assert_eq!(server.requests()[0].messages()[1..3], *old.as_array().unwrap(), "{run}");
    }

    #[test]
    fn a_saved_session_has_prompts_and_texts_as_they_came() {
        let line = "head \u{202e}\u{1b}[2J\u{200b}\u{a0}\u{e0041} tail";
        let (server, place) = (Server::start([Reply::text(ATTACK)]), Place::new());
        place.run(&server, &[], &format!("{line}\n"));
        let session = place.session();
        let contents: Vec<_> = session["messages"].as_array().unwrap()[1..].iter().collect();
        assert_eq!(contents[0]["content"], line);
        assert_eq!(contents[1]["content"], ATTACK);
    }
}

mod needs_models {
    use super::*;

    #[test]
    fn the_names_of_models_are_clean() {
        let (server, place) = (Server::start([]), Place::new());
        server.set_models(Reply::json(
            json!({"data": [{"id": ATTACK}, {"id": "e\u{301}/\u{6f22}"}]}),
        ));
        let run = place.run(&server, &[], "/models\n");
        assert!(run.stdout.contains(&format!("  {CLEAN}\n  e\u{301}/\u{6f22}\n")), "{run}");
        assert_clean(&run.stdout, &run);
    }

    #[test]
    fn the_error_text_of_a_command_is_clean() {
        let (server, place) = (Server::start([]), Place::new());
        server.set_models(Reply::status(400, ATTACK));
        let run =
            place.run(&server, &[], "/models\n/no\u{202e}\u{1b}[2J\n/load \u{9b}31m\u{202e}\n");
        assert!(run.stderr.contains(CLEAN), "{run}");
        assert_clean(&(run.stdout.clone() + &run.stderr), &run);
    }
}

mod needs_cfg {
    use super::*;

    #[test]
    fn settings_are_shown_clean() {
        let (server, place) = (Server::start([]), Place::new());
        place.config(&server, "model=x\u{1b}[2J\u{202e}y\nnote=\u{9b}31m\u{200b}z");
        let run = place.run(&server, &[], "/cfg\n/cfg model\n/cfg note\n");
        assert!(run.stdout.contains("model=x[2Jy\n"), "{run}");
        assert!(run.stdout.contains("note=31mz\n"), "{run}");
        assert_clean(&run.stdout, &run);
    }
}

mod needs_retries {
    use super::*;

    #[test]
    fn the_text_of_a_retry_is_clean() {
        let (_, _, run) = ask([Reply::status(503, ATTACK), Reply::text("done")]);
        assert!(run.stderr.contains(&format!("[retry 1/9 in 1s: HTTP 503: {CLEAN}]")), "{run}");
        assert_clean(&run.stderr, &run);
    }
}

mod needs_reasoning {
    use super::*;

    #[test]
    fn reasoning_is_shown_clean_and_stored_as_it_came() {
        for key in ["reasoning_content", "reasoning"] {
            let thought = delta(json!({ key: format!("{ATTACK}\n{KEPT}") }));
            let (text, end) = (delta(json!({"content": "one"})), finish("stop"));
            let reply = Reply::sse(&[&thought, &text, &end, "[DONE]"]);
            let server = Server::start([reply, Reply::text("two")]);
            let run = Place::new().run(&server, &[], "first\nsecond\n");
            assert!(run.stdout.contains(&format!("{CLEAN}\n{KEPT}")), "{run}");
            assert_clean(&run.stdout, &run);
            let stored = server.requests()[1].messages()[2][key].clone();
            assert_eq!(stored, format!("{ATTACK}\n{KEPT}"), "{run}");
        }
    }
}

mod needs_quiet {
    use super::*;

    #[test]
    fn the_final_answer_is_clean_with_quiet_too() {
        let (server, place) = (Server::start([Reply::text(ATTACK)]), Place::new());
        let run = place.run(&server, &["-", "quiet=true"], "hello");
        assert_eq!(run.stdout, format!("{CLEAN}\n"), "{run}");
    }
}

mod needs_confirm {
    use super::*;

    #[test]
    fn the_question_about_a_call_is_clean() {
        let command = json!({"command": format!("echo {ATTACK}")}).to_string();
        let command = command.replace("\\u001b", "\u{9b}"); // raw where JSON allows it
        let script = [Reply::calls(&[("c1", "shell_exec", &command)]), Reply::text("done")];
        let (server, place) = (Server::start(script), Place::new());
        let run = place.run(&server, &["-", "confirm=true"], "do it");
        assert!((run.stdout.clone() + &run.stderr).contains("echo "), "{run}");
        assert_clean(&(run.stdout.clone() + &run.stderr), &run);
    }
}

mod needs_terminal {
    use super::*;

    #[test]
    fn no_escape_sequence_from_outside_reaches_the_terminal() {
        let title = "\u{1b}]0;title\u{7}";
        let thought = delta(json!({"reasoning": title}));
        let function = json!({"name": format!("no{title}"), "arguments": "{}"});
        let calls = json!([{"index": 0, "id": "c1", "type": "function", "function": function}]);
        let calls = delta(json!({"content": title, "tool_calls": calls}));
        let server = Server::start([
            Reply::sse(&[&thought, &calls, &finish("tool_calls"), "[DONE]"]),
            call("shell_exec", json!({"command": "cat output"})),
            Reply::status(400, title),
        ]);
        let place = Place::new();
        place.write("output", title);
        place.config(&server, &format!("model=m{title}")); // the first line names it
        let mut terminal = place.terminal(&server, &["color=always"]);
        terminal.type_text("do it\r");
        terminal.wait_for("API error: HTTP 400");
        for line in ["!cat output\r", "/quit\r"] {
            terminal.wait_for("\n> "); // lines that arrive together are one prompt
            terminal.type_text(line);
        }
        let run = terminal.finish();
        assert!(run.stdout.matches("]0;title").count() >= 7, "{run}");
        assert!(!run.stdout.contains("\u{1b}]") && !run.stdout.contains('\u{7}'), "{run}");
    }
}
