//! How mb is called and how it ends: arguments, input, exit statuses (§1 of the contract).

#[macro_use]
mod common;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, pipe};
use std::os::unix::ffi::OsStrExt;

use common::*;

const ECHO: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"echo hi"}"#);

/// A call that must end at once, without a request: its run.
fn refused(place: &Place, args: &[&str], stdin: &[u8]) -> Run {
    let server = Server::start([]);
    let run = place.mb(&server, args).stdin(stdin).run();
    assert_eq!(server.requests().len() + server.model_requests().len(), 0, "{run}");
    assert_eq!(run.stdout, "", "{run}");
    run
}

/// What the user said in the only request of a run.
fn prompt_of(server: &Server, run: &Run) -> String {
    assert_eq!((run.status, server.requests().len()), (0, 1), "{run}");
    assert_eq!(server.requests()[0].roles(), ["system", "user"], "{run}");
    server.requests()[0].messages()[1]["content"].as_str().unwrap().to_string()
}

// ---- Options

#[test]
fn the_help_and_the_version_are_printed_whatever_the_configuration() {
    let place = Place::new();
    place.write("model.cfg", "no setting\n");
    for (option, words) in [
        ("-h", ["mb", "FILE", "key=value"]),
        ("--help", ["mb", "FILE", "key=value"]),
        ("-V", ["mb ", ".", "\n"]),
        ("--version", ["mb ", ".", "\n"]),
    ] {
        let run = place.mb_alone(&[option]).run();
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
        assert!(words.iter().all(|word| run.stdout.contains(word)), "{run}");
    }
}

#[test]
fn an_unknown_option_is_a_usage_error() {
    let place = Place::new();
    for option in ["-x", "--quiet", "-model=x", "--model=x"] {
        for args in [vec![option], vec![option, "-"], vec!["-", option]] {
            let run = refused(&place, &args, b"hello");
            assert_eq!((run.status, run.stderr.lines().count()), (2, 1), "{run}");
            assert!(run.stderr.contains(option), "no {option} on stderr{run}");
            assert!(run.stderr.contains("mb --help"), "{run}");
        }
    }
}

#[test]
fn a_second_file_is_a_usage_error() {
    let place = Place::new();
    place.write("a", "one");
    place.write("b", "two");
    for args in [&["a", "b"][..], &["a", "-"], &["-", "-"], &["a", "model=x", "b"]] {
        let run = refused(&place, args, b"hello");
        assert_eq!((run.status, run.stderr.lines().count()), (2, 1), "{run}");
        assert!(run.stderr.contains("mb --help"), "{run}");
    }
}

// ---- FILE

#[test]
fn a_file_is_one_prompt_and_mb_ends_after_its_turn() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.write("p.txt", "first line\n\n/second line\nthird\\\nfourth \u{e9}");
    let run = place.run(&server, &["p.txt"], "not this\n");
    let prompt = prompt_of(&server, &run);
    assert_eq!(prompt, "first line\n\n/second line\nthird\\\nfourth \u{e9}", "{run}");
    assert!(run.stdout.contains("done"), "{run}");
}

#[test]
fn a_dash_is_all_of_standard_input() {
    let server = Server::start([Reply::text("done")]);
    let run = Place::new().run(&server, &["-"], "first line\n\nsecond line");
    assert_eq!(prompt_of(&server, &run), "first line\n\nsecond line", "{run}");
}

#[test]
fn a_byte_order_mark_and_the_line_ends_of_windows_are_no_part_of_a_prompt() {
    for (text, sent) in [
        ("\u{feff}first\r\nsecond\r\n", "first\nsecond\n"),
        ("first\r\n\r\nsecond", "first\n\nsecond"),
        ("a\rb\r\r\nc\r", "a\rb\r\nc\r"), // no line ends
        ("a\u{feff}b\n\u{feff}c", "a\u{feff}b\n\u{feff}c"), // no mark
    ] {
        for args in [["p.txt"], ["-"]] {
            let (server, place) = (Server::start([Reply::text("done")]), Place::new());
            place.write("p.txt", text);
            let run = place.run(&server, &args, if args == ["-"] { text } else { "" });
            assert_eq!(prompt_of(&server, &run), sent, "{text:?}{run}");
        }
    }
}

#[test]
fn commands_are_no_commands_in_a_file() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.write("p.txt", "/quit is what I typed");
    let run = place.run(&server, &["p.txt"], "");
    assert_eq!(prompt_of(&server, &run), "/quit is what I typed", "{run}");
}

#[test]
fn a_file_mode_run_does_not_wait_for_its_standard_input() {
    let server = Server::start([Reply::calls(&[ECHO]), Reply::text("done")]);
    let place = Place::new();
    place.write("p.txt", "hello");
    let run = place.mb(&server, &["p.txt"]).limit(30).start().finish(); // its input stays open
    assert_eq!((run.status, server.requests().len()), (0, 2), "{run}");
}

#[test]
fn a_file_that_is_no_prompt_is_a_usage_error_that_names_it() {
    let place = Place::new();
    place.write("empty.txt", "");
    place.write("blank.txt", " \n\t\r\n");
    place.write("mark.txt", "\u{feff}\r\n");
    place.write("latin1.txt", b"gr\xfc\xdfe");
    std::fs::create_dir(place.path("folder.txt")).unwrap();
    let names = [
        "missing.txt",
        "no/such.txt",
        "empty.txt",
        "blank.txt",
        "mark.txt",
        "latin1.txt",
        "folder.txt",
    ];
    for name in names {
        let run = refused(&place, &[name], b"");
        assert_eq!(run.status, 2, "{run}");
        assert!(run.stderr.contains(name) && run.stderr.contains("mb --help"), "{run}");
        assert_eq!(run.stderr.lines().count(), 1, "{run}");
    }
}

#[test]
fn standard_input_that_is_no_prompt_is_a_usage_error() {
    let place = Place::new();
    for input in [&b""[..], b" \n\t\n", b"gr\xfc\xdfe", b"\xef\xbb\xbf\r\n"] {
        let run = refused(&place, &["-"], input);
        assert_eq!((run.status, run.stderr.lines().count()), (2, 1), "{run}");
        assert!(run.stderr.contains("mb --help"), "{run}");
    }
}

#[test]
fn a_files_name_cannot_control_the_terminal() {
    let run = refused(&Place::new(), &["\u{1b}[31m\u{202e}missing.txt"], b"");
    assert_eq!(run.status, 2, "{run}");
    assert!(run.stderr.contains("missing.txt"), "{run}");
    assert!(!run.stderr.contains(['\u{1b}', '\u{202e}']), "{run}");
}

#[test]
fn a_missing_file_is_named_whatever_its_bytes() {
    let (server, place) = (Server::start([]), Place::new());
    let run = place.mb(&server, &[]).arg(OsStr::from_bytes(b"caf\xe9.txt")).run();
    assert_eq!((run.status, run.stderr.lines().count()), (2, 1), "{run}");
    assert!(run.stderr.contains("caf") && run.stderr.contains(".txt"), "{run}");
}

// ---- Overrides

#[test]
fn an_argument_with_an_equals_sign_is_an_override_wherever_it_stands() {
    for args in [["model=m", "note=a=b", "p.txt"], ["p.txt", "model=m", "note=a=b"]] {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        place.write("p.txt", "hello");
        let run = place.run(&server, &args, "");
        assert_eq!(prompt_of(&server, &run), "hello", "{run}");
        assert_eq!(server.requests()[0].body["model"], "m", "{run}");
        assert_eq!(server.requests()[0].body["note"], "a=b", "{run}");
    }
}

#[test]
fn an_argument_that_names_an_existing_file_is_no_override() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.write("model=a.txt", "hello");
    let run = place.run(&server, &["model=a.txt"], "");
    assert_eq!(prompt_of(&server, &run), "hello", "{run}");
    assert_eq!(server.requests()[0].body["model"], "kilo-auto/free", "{run}");
}

#[test]
fn overrides_hold_for_an_interactive_run_too() {
    let server = Server::start([Reply::text("one"), Reply::text("two")]);
    let run = Place::new().run(&server, &["model=m"], "first\nsecond\n");
    let models: Vec<_> = server.requests().iter().map(|r| r.body["model"].clone()).collect();
    assert_eq!(models, ["m", "m"], "{run}");
}

// ---- Interactive

#[test]
fn each_line_of_standard_input_is_a_prompt() {
    let server = Server::start([Reply::text("one"), Reply::text("two")]);
    let run = Place::new().run(&server, &[], "first\nsecond\n");
    assert_eq!(run.status, 0, "{run}");
    let requests = server.requests();
    assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{run}");
    let prompts = [1, 3].map(|at| requests[1].messages()[at]["content"].clone());
    assert_eq!(prompts, ["first", "second"], "{run}");
}

#[test]
fn a_last_line_without_a_newline_is_a_prompt() {
    let server = Server::start([Reply::text("done")]);
    let run = Place::new().run(&server, &[], "hi");
    assert_eq!(prompt_of(&server, &run), "hi", "{run}");
}

#[test]
fn without_any_input_mb_ends_well() {
    let (server, place) = (Server::start([]), Place::new());
    for input in ["", "\n", " \n\t\n\r\n"] {
        let run = place.run(&server, &[], input);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    }
}

#[test]
fn a_line_that_is_not_utf8_stops_nothing() {
    let (server, place) = (Server::start([Reply::text("one"), Reply::text("two")]), Place::new());
    let run = place.mb(&server, &[]).stdin(b"caf\xe9 \xff\nsecond\n").run();
    assert_eq!(run.status, 0, "{run}");
    let last = server.requests().last().expect("a request").clone();
    assert_eq!(last.messages().last().unwrap()["content"], "second", "{run}");
}

// ---- !CMD

#[test]
fn a_prompt_that_starts_with_a_bang_is_run_and_nothing_is_sent() {
    let (server, place) = (Server::start([]), Place::new());
    let (lines, folder) = ("!echo out; echo err >&2\necho next", place.work());
    let (out, folder) = ("out\nerr\nnext\n", format!("{}\n", folder.display()));
    place.write("p.txt", lines);
    for (args, input, shown) in
        [(&["p.txt"][..], "", out), (&["-"], lines, out), (&[], "!pwd", &folder)]
    {
        let run = place.run(&server, args, input);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
        assert_eq!(run.stdout, format!("{shown}\n\nexit: 0\n"), "{run}");
    }
    assert_eq!(server.model_requests().len(), 0);
}

#[test]
fn a_command_of_windows_is_run_and_not_sent() {
    let (server, place) = (Server::start([]), Place::new());
    for text in
        ["\u{feff}!echo a\necho b", "!echo a\r\necho b\r\n", "\u{feff}!echo a\r\necho b\r\n"]
    {
        place.write("p.txt", text);
        for args in [["p.txt"], ["-"]] {
            let run = place.run(&server, &args, if args == ["-"] { text } else { "" });
            assert_eq!((run.status, server.requests().len()), (0, 0), "{text:?}{run}");
            assert!(run.stdout.starts_with("a\nb\n"), "{text:?}{run}");
        }
    }
}

#[test]
fn a_bang_line_does_not_join_the_conversation() {
    let server = Server::start([Reply::text("one"), Reply::text("two")]);
    let run = Place::new().run(&server, &[], "first\n!echo secret\nsecond\n");
    assert!(run.stdout.contains("secret"), "{run}");
    let request = &server.requests()[1];
    assert_eq!(request.roles(), ["system", "user", "assistant", "user"], "{run}");
    let said: Vec<_> = request.messages()[1..].iter().map(text_of).collect();
    assert_eq!(said, ["first", "one", "second"], "{run}");
}

#[test]
fn a_bang_file_ends_with_the_commands_status() {
    let (server, place) = (Server::start([]), Place::new());
    for (command, status) in [
        ("!exit 3", 3),
        ("!false", 1),
        ("!no-such-command-here", 127),
        ("!kill -9 $$", 137),
        ("!kill -TERM $$", 143),
        ("!sleep 300", 124), // timed out
    ] {
        let run = place.mb(&server, &["-", "shell_timeout=1"]).stdin(command).limit(30).run();
        assert_eq!(run.status, status, "{run}");
    }
    let run = place.run(&server, &[], "!exit 3\n");
    assert_eq!(run.status, 0, "interactive{run}");
}

// ---- Exit statuses

#[test]
fn a_turn_that_fails_ends_with_status_1() {
    let endless = || Reply::calls(&[ECHO]);
    let silent = Reply::sse(&[&finish("stop"), "[DONE]"]);
    for (script, text) in [
        (vec![Reply::status(401, "no such key")], "API error: HTTP 401: no such key"),
        (vec![silent], "empty reply (finish reason: stop)"),
        (vec![endless(), endless()], "iterations"), // their limit
        (vec![endless(), Reply::status(400, "too long")], "API error: HTTP 400: too long"),
    ] {
        let (count, server) = (script.len(), Server::start(script));
        let run = Place::new().run(&server, &["-", "max_al_iterations=2"], "hello");
        assert_eq!((run.status, server.requests().len()), (1, count), "{run}");
        assert!(run.stderr.contains(text) && !run.stdout.contains(text), "{run}");
    }
}

#[test]
fn an_interrupt_in_file_mode_ends_with_status_130() {
    const BUSY: &str = "touch busy; sleep 300";
    let arguments = serde_json::json!({"command": BUSY}).to_string();
    let call = Reply::calls(&[("c1", "shell_exec", &arguments)]);
    let bang = format!("!{BUSY}");
    for (prompt, reply, hangs) in
        [("hello", Reply::hang(), true), ("hello", call, false), (&bang, Reply::hang(), false)]
    {
        let (server, place) = (Server::start([reply]), Place::new());
        let mut live = place.mb(&server, &["-"]).limit(20).start();
        live.send(prompt);
        live.close_stdin();
        let asked = || server.requests().len() == 1;
        live.wait_until("mb is busy", || place.path("busy").exists() || hangs && asked());
        live.signal(libc::SIGINT);
        let run = live.finish();
        assert_eq!(run.status, 130, "{run}");
    }
}

// ---- A reader that goes away

#[test]
fn a_reader_that_goes_away_ends_mb_silently() {
    let (gate, place) = (Gate::default(), Place::new());
    let long: Vec<String> = (0..100).map(|n| format!("line {n}\n").repeat(100)).collect();
    let server = Server::start([Reply::text(&long.concat()).held(&gate)]);
    let (reader, writer) = pipe().unwrap();
    let mut live = place.mb(&server, &["-"]).stdout(writer).start();
    live.send("hello");
    live.close_stdin();
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap(); // and no more: as `head -1` does
    gate.open();
    let run = live.finish();
    assert_ne!(line, "", "{run}");
    assert_eq!(run.stderr, "", "{run}");
}

#[test]
fn a_stdout_that_cannot_be_written_is_no_crash() {
    for prompt in ["hello", "!echo hi"] {
        let place = Place::new();
        for at in 0..3 {
            let server = Server::start([Reply::text("done"), Reply::text("done")]);
            let mb = place.mb(&server, &["-"]).stdin(prompt);
            let run = match at {
                0 => mb.stdout_unread().run(),
                1 => mb.stdout_closed().run(),
                _ => mb.stdout(File::options().write(true).open("/dev/full").unwrap()).run(),
            };
            assert!(!run.stderr.contains("panicked"), "{run}");
            assert!([0, 1, 141].contains(&run.status), "{run}");
            assert!(at > 0 || run.stderr.is_empty(), "{run}");
        }
    }
}

#[test]
fn a_stderr_that_cannot_be_written_is_no_crash() {
    let (server, place) = (Server::start([Reply::status(401, "no")]), Place::new());
    place.config(&server, "");
    place.write("p.txt", "hello");
    let mut command = std::process::Command::new(mb());
    command.arg("p.txt").current_dir(place.work()).env("HOME", place.home());
    command.stderr(File::options().write(true).open("/dev/full").unwrap());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

// ---- What goes with a part that a port may lack

mod needs_terminal {
    use super::*;

    #[test]
    fn the_end_of_input_on_a_terminal_is_a_good_end() {
        let (server, place) = (Server::start([]), Place::new());
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.key(CTRL_D);
        let run = terminal.finish();
        assert_eq!(run.status, 0, "{run}");
    }
}
