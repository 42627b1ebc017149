//! What mb reads from its configuration: which file, errors, and each key's effect (§2 of the
//! contract; what is sent of it is in request.rs, `timeout` in failure.rs).

#[macro_use]
mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

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

/// Whether these values are no values of this key, in a file and on the command line.
fn takes_none_of(key: &str, values: &[&str]) {
    for (value, file) in values.iter().zip([".bantam.cfg", "model.cfg"].iter().cycle()) {
        let text = format!("endpoint=SERVER\n{key}={value}\n");
        let run = refused(&Place::new(), file, &text, &["-"]);
        assert!(run.stderr.contains(file), "{run}");
        let named = run.stderr.contains(&format!("{key} ")) || run.stderr.contains("line 2");
        assert!(named, "{key}={value}{run}");
        let pair = format!("{key}={value}");
        let run = refused(&Place::new(), "model.cfg", "endpoint=SERVER\n", &["-", &pair]);
        assert!(run.stderr.contains(key), "{run}");
    }
}

const NO_NUMBERS: [&str; 8] = ["abc", "5s", "1,5", "true", "1 2", "0x10", "--1", "1k"];

const NO_BOOLEANS: [&str; 6] = ["yes", "1", "0", "TRUE", "\"true\"", "true false"];

#[test]
fn a_number_key_without_a_number_is_an_error_that_names_file_and_key() {
    for key in ["temperature", "timeout", "shell_timeout", "max_al_iterations"] {
        takes_none_of(key, &NO_NUMBERS);
    }
}

#[test]
fn an_error_text_shows_no_key() {
    let text = "endpoint=SERVER\napi_key=sk-secret\ntimeout=abc\n";
    let run = refused(&Place::new(), "model.cfg", text, &["-"]);
    assert!(!run.stderr.contains("sk-secret"), "{run}");
}

#[test]
fn an_error_text_shows_no_key_under_a_wrong_name_either() {
    for name in ["export api_key", "API_KEY", "api-key"] {
        let text = format!("endpoint=SERVER\n{name}=sk-secret\n");
        let run = refused(&Place::new(), "model.cfg", &text, &["-"]);
        assert!(!run.stderr.contains("sk-secret"), "{run}");
    }
}

#[test]
fn a_name_of_anything_but_small_letters_digits_and_underscores_is_an_error() {
    for name in [
        "export api_key",
        "API_KEY",
        "Model",
        "api-key",
        "model.name",
        "\"seed\"",
        "top p",
        "mod\u{e8}l",
        "seed:",
        "$x",
    ] {
        let text = format!("endpoint=SERVER\n{name}=1\n");
        let run = refused(&Place::new(), ".bantam.cfg", &text, &["-"]);
        assert!(run.stderr.contains(".bantam.cfg"), "{run}");
        let named = run.stderr.contains(name) || run.stderr.contains("line 2");
        assert!(named, "neither {name} nor its line{run}");
        let run =
            refused(&Place::new(), "model.cfg", "endpoint=SERVER\n", &["-", &format!("{name}=1")]);
        assert!(run.stderr.contains(name), "no {name}{run}");
    }
}

#[test]
fn a_name_of_small_letters_digits_and_underscores_is_sent() {
    let (server, _, run) = run_with("top_k=40\n_x=1\nb2b=3\n9=9\n", [Reply::text("done")]);
    let body = &server.requests()[0].body;
    let sent = ["top_k", "_x", "b2b", "9"].map(|key| body[key].as_i64());
    assert_eq!(sent, [40, 1, 3, 9].map(Some), "{run}");
}

#[test]
fn an_endpoint_with_a_port_that_is_none_is_an_error_that_names_file_and_line() {
    for host in ["127.0.0.1:99999", "127.0.0.1:abc", "127.0.0.1:", "u:p@127.0.0.1:x", "[::1]:-1"] {
        let text = format!("model=m\nendpoint=http://{host}/v1\n");
        let run = refused(&Place::new(), "model.cfg", &text, &["-"]);
        assert!(run.stderr.contains("model.cfg, line 2: ") && run.stderr.contains("port"), "{run}");
    }
    for host in ["u:p@127.0.0.1:9", "[::1]:9", "[::1]", "127.0.0.1"] {
        let pair = format!("endpoint=http://{host}/v1");
        let run = Place::new().mb_alone(&[&pair]).stdin("/cfg endpoint\n").run();
        assert_eq!((run.status, run.stdout.trim_end()), (0, pair.as_str()), "{run}");
    }
}

#[test]
fn an_endpoint_without_a_scheme_is_an_error_that_names_file_and_key() {
    for endpoint in [
        "127.0.0.1:8080/v1",
        "api.openai.com/v1",
        "localhost",
        "ftp://127.0.0.1/v1",
        "//127.0.0.1/v1",
        "http:/127.0.0.1/v1",
        "\"http://127.0.0.1:1/v1\"",
        "://",
    ] {
        let text = format!("model=m\nendpoint={endpoint}\n");
        let run = refused(&Place::new(), "model.cfg", &text, &["-"]);
        assert!(run.stderr.contains("model.cfg"), "{run}");
        assert!(run.stderr.contains("endpoint") && run.stderr.contains("http://"), "{run}");
        let pair = format!("endpoint={endpoint}");
        let run = refused(&Place::new(), "model.cfg", "endpoint=SERVER\n", &["-", &pair]);
        assert!(run.stderr.contains("endpoint") && run.stderr.contains("http://"), "{run}");
    }
}

// ---- A file that is there and cannot be read

/// A run whose configuration cannot be had: its error must name one of these files.
fn unreadable(place: &Place, names: &[&str], setup: fn()) {
    let server = Server::start([]);
    let endpoint = format!("endpoint={}", server.url());
    let run = place.mb_alone(&["-", &endpoint]).stdin("hello").setup(setup).run();
    let _ = fs::set_permissions(place.work(), Permissions::from_mode(0o700)); // to be removed
    assert_eq!((run.status, run.stdout.as_str(), server.requests().len()), (1, "", 0), "{run}");
    assert_eq!(run.stderr.lines().count(), 1, "{run}");
    assert!(names.iter().any(|name| run.stderr.contains(name)), "none of {names:?}{run}");
}

#[test]
fn a_file_that_is_a_folder_or_not_utf8_is_an_error_that_names_it() {
    for name in [".bantam.cfg", "model.cfg"] {
        let place = Place::new();
        fs::create_dir(place.path(name)).unwrap();
        unreadable(&place, &[name], || ());
        let place = Place::new();
        place.write(name, b"model=caf\xe9\n");
        unreadable(&place, &[name], || ());
    }
}

#[test]
fn a_link_that_dangles_or_loops_is_an_error_that_names_it() {
    for name in [".bantam.cfg", "model.cfg"] {
        for target in ["nowhere", "no/where", name, "/dev/null/x"] {
            let place = Place::new();
            if name == ".bantam.cfg" {
                place.write("model.cfg", "model=m\n"); // which does not step in
            }
            symlink(target, place.path(name)).unwrap();
            unreadable(&place, &[name], || ());
        }
    }
}

/// Takes from mb what root may do to files whose mode forbids it.
fn without_override() {
    for capability in [1, 2] {
        // CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, in vain for any other user
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

#[test]
fn a_file_that_may_not_be_read_is_an_error_that_names_it() {
    for name in [".bantam.cfg", "model.cfg"] {
        let place = Place::new();
        place.write("model.cfg", "model=m\n");
        place.write(name, "model=m\n");
        fs::set_permissions(place.path(name), Permissions::from_mode(0o000)).unwrap();
        unreadable(&place, &[name], without_override);
    }
}

#[test]
fn in_a_folder_that_may_not_be_searched_no_file_counts_as_absent() {
    for mode in [0o000, 0o600] {
        let place = Place::new();
        place.write("model.cfg", "confirm=true\n");
        fs::set_permissions(place.work(), Permissions::from_mode(mode)).unwrap();
        unreadable(&place, &[".bantam.cfg", "model.cfg"], without_override);
    }
}

#[test]
fn a_link_to_a_file_is_read() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.write("elsewhere", format!("endpoint={}\nmodel=m\n", server.url()));
    symlink("elsewhere", place.path(".bantam.cfg")).unwrap();
    let run = place.run(&server, &["-"], "hello");
    assert_eq!((run.status, server.requests().len()), (0, 1), "{run}");
    assert_eq!(server.requests()[0].body["model"], "m", "{run}");
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
        fs::create_dir_all(&folder).unwrap();
        for name in [".bantam.cfg", "model.cfg"] {
            fs::write(folder.join(name), "model=wrong\nnonsense\n").unwrap();
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
    let names: Vec<_> = fs::read_dir(place.work()).unwrap().flatten().collect();
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
    let lines = "#\n# nonsense\n#timeout=abc\n   # model=m\n\t#=\n#\u{e9}\r\n";
    let (server, _, run) = run_with(lines, [Reply::text("done")]);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    assert_eq!(server.requests()[0].body["model"], "kilo-auto/free", "{run}");
}

#[test]
fn the_last_of_two_equal_keys_wins() {
    let server = Server::start([Reply::text("done")]);
    let place = Place::new();
    let first = "endpoint=http://127.0.0.1:1\nmodel=a\nseed=1\n";
    place.write("model.cfg", format!("{first}endpoint={}\nmodel=b\n seed = 2\n", server.url()));
    let run = place.run(&server, &["-"], "hello");
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(server.requests()[0].body["model"], "b", "{run}");
    assert_eq!(server.requests()[0].body["seed"], 2, "{run}");
}

#[test]
fn line_ends_of_windows_change_no_value() {
    let lines = "stream=true\r\ntimeout=20\r\nseed=7\r\nconfirm=false\r\nmodel=m\r";
    let (server, _, run) = run_with(lines, [Reply::text("done")]);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    assert_eq!(server.requests()[0].body["model"], "m", "{run}");
    assert_eq!(server.requests()[0].body["seed"], 7, "{run}");
}

#[test]
fn keys_set_to_nothing_take_their_defaults() {
    let lines = "timeout=\nshell_timeout= \nmax_al_iterations=\r\ncontext_window=\ncolor=\nquiet=\n\
        confirm=\nstream=\nbantam_tools_dir=\napi_key=\nmodel=";
    let (_, _, run) = run_with(lines, [call("echo hi"), Reply::text("done")]);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    assert!(run.stdout.contains("hi\n\n\nexit: 0"), "{run}");
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
fn the_folder_of_tools_is_the_environments_before_any_other() {
    for (variable, line, argument, folder) in [
        ("/env", "/file", "/argument", "/env"),
        ("/env", "", "/argument", "/env"),
        ("", "/file", "/argument", "/argument"),
        ("", "/file", "", "/file"),
    ] {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        place.config(&server, &format!("bantam_tools_dir={line}"));
        let pair = format!("bantam_tools_dir={argument}");
        let args = if argument.is_empty() { vec!["-"] } else { vec!["-", &pair] };
        let run = place.mb(&server, &args).env("BANTAM_TOOLS_DIR", variable).stdin("hello").run();
        let system = text_of(&server.requests()[0].messages()[0]);
        let last = format!("Extra shell tools can be found at {folder}");
        assert_eq!(system.trim_end().lines().last(), Some(last.as_str()), "{run}");
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

// ---- What goes with a part that a port may lack

mod needs_token_line {
    use super::*;

    #[test]
    fn the_context_window_takes_nothing_but_a_number() {
        takes_none_of("context_window", &NO_NUMBERS);
    }

    #[test]
    fn the_context_window_is_shown() {
        for (lines, context) in [
            ("context_window=8000", "720/8000 (9.0%)"),
            ("", "720/200000 (0.4%)"),
            ("context_window=", "720/200000 (0.4%)"),
        ] {
            let (_, _, run) = run_with(lines, [Reply::text("done").with_usage(720, 0, 5)]);
            assert!(run.stdout.contains(&format!("context: {context}")), "{run}");
        }
    }
}

mod needs_streaming {
    use super::*;

    #[test]
    fn stream_takes_nothing_but_true_and_false() {
        takes_none_of("stream", &NO_BOOLEANS);
    }
}

mod needs_confirm {
    use super::*;

    #[test]
    fn confirm_takes_nothing_but_true_and_false() {
        takes_none_of("confirm", &NO_BOOLEANS);
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
}

mod needs_quiet {
    use super::*;

    #[test]
    fn quiet_takes_nothing_but_true_and_false() {
        takes_none_of("quiet", &NO_BOOLEANS);
    }

    #[test]
    fn quiet_is_decided_by_its_key() {
        for (value, lines) in [("true", 1), ("false", 3)] {
            let (_, _, run) = run_with(&format!("quiet={value}\r"), [Reply::text("done")]);
            assert_eq!(run.stdout.trim_end().lines().count(), lines, "{run}");
        }
    }
}

mod needs_color {
    use super::*;

    #[test]
    fn color_is_decided_by_its_key() {
        for (value, colored) in [("always", true), ("never", false), ("auto", false)] {
            let (_, _, run) =
                run_with(&format!("color={value}"), [call("echo hi"), Reply::text("done")]);
            assert_eq!(run.stdout.contains("\u{1b}["), colored, "{run}");
        }
    }
}

mod needs_proxy {
    use super::*;

    /// A key that no header can hold. Whoever uses it fails before a connection is made; whoever
    /// does not, asks the default endpoint, by the proxy.
    const BROKEN_KEY: &str = "sk-a\nb";

    /// Whether the environment's key is used under this configuration, for a default endpoint that
    /// only the proxy can reach.
    fn key_is_used(model_cfg: &str, args: &[&str], stdin: &str) -> bool {
        let (proxy, place) = (Server::start([]), Place::new());
        place.write("model.cfg", model_cfg);
        let address = format!("http://{}", proxy.address());
        let mb = place.mb_alone(args).env("HTTPS_PROXY", &address);
        let mut live = mb.env("OPENAI_API_KEY", BROKEN_KEY).start();
        live.send(stdin);
        live.close_stdin();
        let asked = || proxy.tunnels().contains(&"api.kilo.ai:443".to_string());
        let pid = live.pid();
        live.wait_until("the key fails, or the proxy is asked", || asked() || !alive(pid));
        !asked()
    }

    #[test]
    fn the_environments_key_is_not_for_the_default_endpoint() {
        for model_cfg in ["", "model=m\n", "endpoint=\n", "#endpoint=http://127.0.0.1:1/v1\n"] {
            for args in [&["-"][..], &["-", "endpoint="], &["-", "timeout=60"]] {
                assert!(!key_is_used(model_cfg, args, "hello"), "{model_cfg:?} {args:?}");
            }
            assert!(!key_is_used(model_cfg, &[], "hello\n"), "{model_cfg:?}");
        }
    }

    #[test]
    fn a_configured_key_is_for_the_default_endpoint_too() {
        let (proxy, place) = (Server::start([]), Place::new());
        let address = format!("http://{}", proxy.address());
        let mb = place.mb_alone(&["-", "api_key=sk-\u{e9}\u{1}x"]).env("HTTPS_PROXY", &address);
        let run = mb.stdin("hello").run(); // no header can hold it: it is used
        assert_eq!((run.status, proxy.tunnels().len()), (1, 0), "{run}");
    }

    #[test]
    fn with_socks5h_the_proxy_looks_the_name_up() {
        let (proxy, place) = (Server::start([Reply::text("done")]), Place::new());
        let value = format!("socks5h://{}", proxy.address());
        let mb = place.mb_alone(&["-", "endpoint=http://name.invalid/v1"]);
        let mut live = mb.env("SOCKS_PROXY", &value).start();
        live.send("hello");
        live.close_stdin();
        live.wait_until("the proxy is asked", || !proxy.tunnels().is_empty());
        let run = live.finish();
        assert_eq!((run.status, proxy.requests().len()), (0, 1), "{run}");
        assert_eq!(proxy.tunnels().first().map(String::as_str), Some("name.invalid:80"), "{run}");
    }

    #[test]
    fn a_socks_proxy_may_be_written_with_either_scheme() {
        for name in ["SOCKS_PROXY", "socks_proxy"] {
            for scheme in ["", "socks5://", "socks5h://"] {
                let (proxy, place) = (Server::start([Reply::text("done")]), Place::new());
                let value = format!("{scheme}{}", proxy.address());
                let mb = place.mb_alone(&["-", "endpoint=http://127.0.0.2:9/v1"]);
                let mut live = mb.env(name, &value).start();
                live.send("hello");
                live.close_stdin();
                let pid = live.pid();
                live.wait_until(&format!("{value} is asked, or mb has given up"), || {
                    !proxy.tunnels().is_empty() || !alive(pid)
                });
                let run = live.finish();
                assert_eq!((run.status, proxy.requests().len()), (0, 1), "{value}{run}");
                assert_eq!(proxy.tunnels()[0], "127.0.0.2:9", "{value}{run}");
            }
        }
    }
}
