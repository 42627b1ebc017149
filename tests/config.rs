//! What mb reads from its configuration: which file, errors, and each key's effect (§2 of the
//! contract; what is sent of it is in request.rs, `timeout` in failure.rs).

mod common;

use common::*;

/// A run under this configuration, which must end with status 1 before any request.
fn refused(place: &Place, file: &str, text: &str, args: &[&str]) -> Run {
    let server = Server::start([]);
    place.write(file, text.replace("SERVER", &server.url()));
    let run = place.run(&server, args, "hello");
    assert_eq!((run.status, run.stdout.as_str()), (1, ""), "{run}");
    assert_eq!(run.stderr.lines().count(), 1, "{run}");
    assert_eq!(server.requests().len() + server.model_requests().len(), 0, "{run}");
    run
}

/// Runs one prompt under these lines.
fn run_with(lines: &str, script: impl IntoIterator<Item = Reply>) -> (Server, Place, Run) {
    let (server, place) = (Server::start(script), Place::new());
    place.config(&server, lines);
    let run = place.mb(&server, &["-"]).stdin("hello").limit(30).run();
    (server, place, run)
}

fn call(command: &str) -> Reply {
    let arguments = serde_json::json!({"command": command}).to_string();
    Reply::calls(&[("c1", "shell_exec", &arguments)])
}

// ---- Errors

#[test]
fn a_line_without_an_equals_sign_is_an_error_that_names_file_and_line() {
    for (before, end) in
        [("endpoint=SERVER\n# a comment\n", "\n"), ("endpoint=SERVER\r\n\r\n", "\r\n")]
    {
        for line in ["nonsense", "  stream  true  ", "model: x"] {
            for args in [&["-"][..], &[]] {
                let text = format!("{before}{line}{end}model=x{end}");
                let run = refused(&Place::new(), "model.cfg", &text, args);
                assert!(run.stderr.contains("model.cfg"), "{run}");
                assert!(
                    ["line 3", ":3", line.trim()].iter().any(|w| run.stderr.contains(w)),
                    "{run}"
                );
            }
        }
    }
}

#[test]
fn a_number_key_without_a_number_is_an_error_that_names_file_and_key() {
    for key in ["temperature", "timeout", "shell_timeout", "max_al_iterations", "context_window"] {
        for value in ["abc", "5s", "1,5", "true", "1 2", "0x10", "--1"] {
            let text = format!("endpoint=SERVER\n{key}={value}\n");
            let run = refused(&Place::new(), "model.cfg", &text, &["-"]);
            assert!(run.stderr.contains("model.cfg"), "{run}");
            let named = run.stderr.contains(&format!("{key} ")) || run.stderr.contains("line 2");
            assert!(named, "{key}={value}{run}");
        }
    }
}

#[test]
fn a_boolean_key_that_is_neither_true_nor_false_is_an_error_that_names_file_and_key() {
    for key in ["stream", "confirm", "quiet"] {
        for value in ["yes", "1", "TRUE", "\"true\"", "true false"] {
            let text = format!("endpoint=SERVER\n{key}={value}\n");
            let run = refused(&Place::new(), ".bantam.cfg", &text, &["-"]);
            assert!(run.stderr.contains(".bantam.cfg"), "{run}");
            assert!(run.stderr.contains(key) || run.stderr.contains("line 2"), "{run}");
        }
    }
}

#[test]
fn an_override_that_the_key_does_not_take_is_an_error_that_names_the_key() {
    for pair in ["timeout=abc", "temperature=warm", "context_window=1k", "stream=yes", "quiet=0"] {
        let run = refused(&Place::new(), "model.cfg", "endpoint=SERVER\n", &["-", pair]);
        assert!(run.stderr.contains(pair.split('=').next().unwrap()), "{run}");
    }
}

#[test]
fn an_error_text_shows_no_key() {
    let text = "endpoint=SERVER\napi_key=sk-secret\ntimeout=abc\n";
    let run = refused(&Place::new(), "model.cfg", text, &["-"]);
    assert!(!run.stderr.contains("sk-secret"), "{run}");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_that_names_it() {
    for name in [".bantam.cfg", "model.cfg"] {
        let (server, place) = (Server::start([]), Place::new());
        std::fs::create_dir(place.path(name)).unwrap();
        let endpoint = format!("endpoint={}", server.url());
        let run = place.run(&server, &["-", &endpoint], "hello");
        assert_eq!((run.status, server.requests().len()), (1, 0), "{run}");
        assert!(run.stderr.contains(name), "{run}");
    }
}

// ---- Which file

#[test]
fn beside_the_hidden_file_the_other_is_not_even_read() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.write("model.cfg", "nonsense\ntimeout=abc\n");
    place.write(".bantam.cfg", format!("endpoint={}\n", server.url()));
    let run = place.run(&server, &["-"], "hello");
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    let run = refused(&place, ".bantam.cfg", "timeout=abc\n", &["-"]);
    assert!(run.stderr.contains(".bantam.cfg"), "{run}");
}

#[test]
fn the_file_is_looked_for_in_the_current_directory_only() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    for folder in [place.home(), place.home().join(".bantam"), place.work().join("..")] {
        std::fs::create_dir_all(&folder).unwrap();
        for name in [".bantam.cfg", "model.cfg"] {
            std::fs::write(folder.join(name), "model=wrong\nnonsense\n").unwrap();
        }
    }
    let endpoint = format!("endpoint={}", server.url());
    let run = place.mb_alone(&["-", &endpoint]).stdin("hello").run();
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(server.requests()[0].body["model"], "kilo-auto/free", "{run}");
}

#[test]
fn reading_changes_no_file() {
    let (server, place, run) = run_with("# mine\r\n model = x \r\n\r\n", [Reply::text("done")]);
    assert_eq!((run.status, server.requests().len()), (0, 1), "{run}");
    assert!(place.read("model.cfg").ends_with("# mine\r\n model = x \r\n\r\n\n"), "{run}");
    let names: Vec<_> = std::fs::read_dir(place.work()).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}{run}");
}

// ---- Lines

#[test]
fn white_space_around_keys_and_values_is_dropped_and_kept_inside() {
    let lines = "\t model \t=\t  a  b \t\r\n  note  =  = x = \r\n";
    let (server, _, run) = run_with(lines, [Reply::text("done")]);
    let body = &server.requests()[0].body;
    assert_eq!(body["model"], "a  b", "{run}");
    assert_eq!(body["note"], "= x =", "{run}");
}

#[test]
fn a_hash_or_an_equals_sign_in_a_value_is_part_of_it() {
    let (server, _, run) = run_with("api_key=sk#1=2==\nmodel=a #b\n", [Reply::text("done")]);
    assert_eq!(server.requests()[0].header("authorization"), Some("Bearer sk#1=2=="), "{run}");
    assert_eq!(server.requests()[0].body["model"], "a #b", "{run}");
}

#[test]
fn a_line_that_starts_with_a_hash_is_a_comment_whatever_is_in_it() {
    let lines = "#\n# nonsense\n#timeout=abc\n   # stream=yes\n\t#=\n#\u{e9}\r\n";
    let (server, _, run) = run_with(lines, [Reply::text("done")]);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    assert_eq!(server.requests()[0].body["stream"], true, "{run}");
}

#[test]
fn the_last_of_two_equal_keys_wins() {
    let server = Server::start([Reply::text("done")]);
    let place = Place::new();
    let first = "endpoint=http://127.0.0.1:1\nmodel=a\nquiet=false\nseed=1\n";
    place.write(
        "model.cfg",
        format!("{first}endpoint={}\nmodel=b\n quiet = true\nseed=2\n", server.url()),
    );
    let run = place.run(&server, &["-"], "hello");
    assert_eq!(run.stdout, "done\n", "{run}");
    assert_eq!(server.requests()[0].body["model"], "b", "{run}");
    assert_eq!(server.requests()[0].body["seed"], 2, "{run}");
}

#[test]
fn line_ends_of_windows_change_no_value() {
    let lines = "quiet=true\r\nstream=true\r\ntimeout=20\r\ncontext_window=1000\r\nmodel=m\r";
    let (server, _, run) = run_with(lines, [Reply::text("done")]);
    assert_eq!((run.status, run.stdout.as_str()), (0, "done\n"), "{run}");
    assert_eq!(server.requests()[0].body["model"], "m", "{run}");
}

#[test]
fn keys_set_to_nothing_take_their_defaults() {
    let lines = "timeout=\nshell_timeout= \nmax_al_iterations=\r\ncontext_window=\ncolor=\nquiet=\n\
        confirm=\nstream=\nbantam_tools_dir=\napi_key=\nmodel=";
    let (_, _, run) = run_with(lines, [call("echo hi"), Reply::text("done")]);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    assert!(run.stdout.contains("hi\n\n\nexit: 0"), "{run}");
    assert!(run.stdout.contains("context: 10/200000 (0.0%)"), "{run}");
}

// ---- What the keys do

#[test]
fn the_shell_timeout_ends_a_command() {
    let (server, _, run) =
        run_with("shell_timeout=1", [call("echo begun; sleep 300"), Reply::text("done")]);
    let result = server.requests()[1].messages()[3]["content"].clone();
    let result = result.as_str().unwrap();
    assert!(result.starts_with("begun\n"), "{run}");
    assert!(result.ends_with("[timed out after 1s]\n\nexit: 124"), "{run}");
}

#[test]
fn a_turn_has_at_most_this_many_iterations() {
    for (limit, runs) in [("1", "x"), ("3", "xxx")] {
        let script = (0..runs.len()).map(|_| call("printf x >> count"));
        let (server, place, run) = run_with(&format!("max_al_iterations={limit}"), script);
        assert_eq!((run.status, server.requests().len()), (1, runs.len()), "{run}");
        assert_eq!(place.read("count"), runs, "the last one's calls are run, too{run}");
        assert!(run.stderr.contains(limit), "{run}");
    }
}

#[test]
fn the_iterations_of_each_turn_are_counted_anew() {
    let script = [call("true"), Reply::text("one"), call("true"), Reply::text("two")];
    let server = Server::start(script);
    let run = Place::new().run(&server, &["max_al_iterations=2"], "first\nsecond\n");
    assert_eq!(server.requests().len(), 4, "{run}");
    assert_eq!(run.stderr, "", "{run}");
}

#[test]
fn the_context_window_is_shown() {
    for (lines, context) in [("context_window=8000", "720/8000 (9.0%)"), ("", "720/200000 (0.4%)")]
    {
        let (_, _, run) = run_with(lines, [Reply::text("done").with_usage(720, 0, 5)]);
        assert!(run.stdout.contains(&format!("context: {context}")), "{run}");
    }
}

#[test]
fn color_is_decided_by_its_key() {
    for (value, colored) in [("always", true), ("never", false), ("auto", false)] {
        let (_, _, run) =
            run_with(&format!("color={value}"), [call("echo hi"), Reply::text("done")]);
        assert_eq!(run.stdout.contains("\u{1b}["), colored, "{run}");
    }
}

#[test]
fn quiet_is_decided_by_its_key() {
    for (value, lines) in [("true", 1), ("false", 3)] {
        let (_, _, run) = run_with(&format!("quiet={value}"), [Reply::text("done")]);
        assert_eq!(run.stdout.trim_end().lines().count(), lines, "{run}");
    }
}

#[test]
fn confirm_is_decided_by_its_key() {
    for (value, runs) in [("true", false), ("false", true)] {
        let script = [call("touch ran"), Reply::text("done")];
        let (_, place, run) = run_with(&format!("confirm={value}"), script);
        assert_eq!(run.stderr.contains("Run it? [y/N]"), !runs, "{run}");
        assert_eq!(place.path("ran").exists(), runs, "{run}");
    }
}

#[test]
fn the_byte_order_mark_of_windows_editors_is_no_part_of_the_first_key() {
    let (server, place) = (Server::start([Reply::text("hi")]), Place::new());
    place.write("model.cfg", format!("\u{feff}endpoint={}\r\nmodel=m\r\n", server.url()));
    let run = place.mb_alone(&["-"]).stdin("hello").run();
    assert_eq!((run.status, server.requests().len()), (0, 1), "{run}");
    assert_eq!(server.requests()[0].body["model"], "m");
}
