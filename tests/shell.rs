//! What `shell_exec` does: order, statuses, timeout, background, input, bounds (§7 of the contract).

#[macro_use]
mod common;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20); // where a fault takes 300 seconds

fn shell(command: &str) -> Reply {
    Reply::calls(&[("c1", "shell_exec", &json!({"command": command}).to_string())])
}

/// Runs this command as a call of the model, in FILE mode.
fn run_in(place: &Place, command: &str, args: &[&str]) -> (String, Run) {
    let server = Server::start([shell(command), Reply::text("done")]);
    let run = place.run(&server, &[&["-"], args].concat(), "do it");
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("\ndone\n"), "{run}");
    (result(&server.requests()[1]), run)
}

/// What the model is told of this command.
fn run(command: &str) -> String {
    run_in(&Place::new(), command, &[]).0
}

/// The content of the request's last tool message.
fn result(request: &Request) -> String {
    let tool = request.messages().iter().rfind(|message| message["role"] == "tool");
    tool.expect("a tool message")["content"].as_str().unwrap().to_string()
}

/// The processes that run in this place, mb included.
fn processes(place: &Place) -> Vec<i32> {
    processes_with(&format!("{}/", place.work().parent().unwrap().display()))
}

fn nothing_is_left(place: &Place) {
    wait_until("all processes are gone", || processes(place).is_empty());
}

/// Runs each case in a thread of its own, since many wait a second for their timeout.
fn each<T: Sync>(cases: &[T], test: impl Fn(&T) + Sync) {
    thread::scope(|scope| cases.iter().for_each(|case| drop(scope.spawn(|| test(case)))));
}

// ---- Result

#[test]
fn the_output_is_followed_by_the_exit_status() {
    assert_eq!(run("echo hi"), "hi\n\n\nexit: 0");
    assert_eq!(run("printf hi"), "hi\n\nexit: 0");
    assert_eq!(run("true"), "\n\nexit: 0");
}

#[test]
fn stdout_and_stderr_keep_their_order() {
    assert_eq!(run("echo a; echo b >&2; echo c"), "a\nb\nc\n\n\nexit: 0");
    let many = "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); echo $i >&2; i=$((i+1)); done";
    let numbers: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    assert_eq!(run(many), numbers.join("\n") + "\n\n\nexit: 0");
}

#[test]
fn the_status_is_the_commands_own() {
    for (command, status) in [
        ("exit 3", 3),
        ("false", 1),
        ("exit 255", 255),
        ("echo out; exit 124", 124),
        ("no-such-command-here", 127),
        ("./no-such-file", 127),
        ("true | false", 1),
    ] {
        let result = run(command);
        assert!(result.ends_with(&format!("\n\nexit: {status}")), "{command}: {result}");
    }
}

#[test]
fn a_death_by_signal_is_128_and_the_signal() {
    for (signal, status) in [("9", 137), ("TERM", 143), ("INT", 130), ("SEGV", 139), ("PIPE", 141)]
    {
        assert_eq!(run(&format!("echo hi; kill -{signal} $$")), format!("hi\n\n\nexit: {status}"));
    }
}

#[test]
fn the_working_directory_is_mbs_own_and_a_cd_does_not_last() {
    let server = Server::start([shell("pwd; cd /"), shell("pwd"), Reply::text("done")]);
    let place = Place::new();
    let run = place.run(&server, &["-"], "do it");
    let requests = server.requests();
    let folder = format!("{}\n\n\nexit: 0", place.work().display());
    assert_eq!(result(&requests[1]), folder, "{run}");
    assert_eq!(result(&requests[2]), folder, "{run}");
}

#[test]
fn the_result_is_shown_as_the_model_gets_it() {
    let (result, run) = run_in(&Place::new(), "echo a; echo b >&2; exit 3", &[]);
    assert!(run.stdout.contains(&format!("[tool result: shell_exec]\n{result}\n")), "{run}");
    let call = r#"[tool call: shell_exec({"command":"echo a; echo b >&2; exit 3"})]"#;
    assert!(run.stdout.contains(&format!("{call}\n[tool result")), "{run}");
}

// ---- Timeout

#[test]
fn at_the_timeout_the_whole_group_is_killed() {
    each(
        &[
            "sleep 300",
            "sleep 300 & sleep 300",
            "(sleep 300; echo x) | cat",
            "sh -c 'sh -c \"sleep 300\" & wait'",
            "trap '' TERM INT HUP; while :; do sleep 1; done",
            "exec sleep 300",
        ],
        |command| {
            let (place, start) = (Place::new(), Instant::now());
            let (result, run) = run_in(&place, command, &["shell_timeout=1"]);
            assert!(start.elapsed() < SOON, "{run}");
            assert!(start.elapsed() >= Duration::from_secs(1), "{run}");
            assert!(result.ends_with("[timed out after 1s]\n\nexit: 124"), "{result}{run}");
            nothing_is_left(&place);
        },
    );
}

#[test]
fn what_was_printed_before_the_timeout_reaches_the_model() {
    for command in ["echo early; sleep 300", "echo early >&2; sleep 300 & sleep 300"] {
        let (result, run) = run_in(&Place::new(), command, &["shell_timeout=1"]);
        assert!(result.starts_with("early\n"), "{run}");
        assert!(result.ends_with("[timed out after 1s]\n\nexit: 124"), "{run}");
    }
}

#[test]
fn a_command_that_never_stops_printing_ends_at_the_timeout() {
    let place = Place::new();
    let (result, run) = run_in(&place, "echo first; yes", &["shell_timeout=2"]);
    assert!(result.starts_with("first\ny\ny\n"), "{run}");
    assert!(result.contains(" bytes omitted ...]"), "{run}");
    assert!(result.ends_with("[timed out after 2s]\n\nexit: 124"), "{run}");
    assert!(result.len() < 50_300, "{} bytes", result.len());
    nothing_is_left(&place);
}

#[test]
fn a_command_that_is_in_time_is_not_timed_out() {
    let (result, run) = run_in(&Place::new(), "sleep 0.2; echo hi", &["shell_timeout=30"]);
    assert_eq!(result, "hi\n\n\nexit: 0", "{run}");
}

#[test]
fn the_timeout_is_that_of_one_command_not_of_the_turn() {
    let command = json!({"command": "sleep 1.1"}).to_string();
    let call = |id| (id, "shell_exec", command.as_str());
    let calls = Reply::calls(&[call("c1"), call("c2"), call("c3"), call("c4")]);
    let server = Server::start([calls, Reply::text("done")]);
    let run = Place::new().run(&server, &["-", "shell_timeout=4"], "do it");
    for message in &server.requests()[1].messages()[3..] {
        assert_eq!(message["content"], "\n\nexit: 0", "{run}");
    }
}

// ---- Background

#[test]
fn a_background_process_that_keeps_the_pipe_does_not_hold_the_call() {
    each(
        &[
            "sleep 300 & echo started",
            "setsid sleep 300 & echo started",
            "nohup sleep 300 & echo started",
            "(sleep 300 &) ; echo started",
            "(trap '' HUP TERM; sleep 300) & echo started; exit 0",
        ],
        |command| {
            let (place, start) = (Place::new(), Instant::now());
            let (result, run) = run_in(&place, command, &[]);
            assert!(start.elapsed() < SOON, "{run}");
            assert!(result.contains("started\n"), "{run}");
            assert!(result.ends_with("\n\nexit: 0"), "{run}");
        },
    );
}

#[test]
fn a_background_loop_that_keeps_printing_does_not_hold_the_call() {
    each(
        &[
            "echo started; (while :; do echo more; sleep 0.01; done) & exit 5",
            "echo started; yes & exit 5",
            "echo started; setsid yes & exit 5",
            "echo started; (trap '' PIPE; while :; do echo more 2>&-; sleep 0.01; done) & exit 5",
        ],
        |command| {
            let (place, start) = (Place::new(), Instant::now());
            let (result, run) = run_in(&place, command, &[]);
            assert!(start.elapsed() < SOON, "{run}");
            assert!(result.starts_with("started\n"), "{run}");
            assert!(result.ends_with("\n\nexit: 5"), "{run}");
        },
    );
}

#[test]
fn a_server_started_in_the_background_serves_the_next_command() {
    let ask = "echo ping > ask; until [ -s told ]; do sleep 0.02; done; cat told";
    let start = "mkfifo ask; (cat ask > told; sleep 300) & echo started";
    let server = Server::start([shell(start), shell(ask), Reply::text("done")]);
    let run = Place::new().run(&server, &["-", "shell_timeout=20"], "do it");
    assert_eq!(result(&server.requests()[1]), "started\n\n\nexit: 0", "{run}");
    assert_eq!(result(&server.requests()[2]), "ping\n\n\nexit: 0", "{run}");
}

#[test]
fn what_the_shell_printed_before_its_end_is_whole_in_spite_of_a_background_process() {
    let command = "sleep 300 & i=0; while [ $i -lt 5000 ]; do echo $i; i=$((i+1)); done";
    let numbers: Vec<String> = (0..5000).map(|n| n.to_string()).collect();
    assert_eq!(run(command), numbers.join("\n") + "\n\n\nexit: 0");
}

/// Prints once it is told to go on, and says that it lives: a process that nobody listens to dies.
const LATER: &str = "until [ -e go ]; do sleep 0.02; done; echo l''ater; echo l''ater; touch alive";

#[test]
fn a_background_process_lives_on_when_it_prints_after_its_call() {
    let much = LATER.replace("echo l''ater", "head -c 500000 /dev/zero | tr '\\0' l");
    each(
        &[
            format!("({LATER}) & echo started"),
            format!("({much}) & echo started"), // more than a pipe holds
            format!("( ({LATER}) >&2 & ); echo started"),
            format!("echo \"{LATER}\" > bg; nohup sh bg & echo started"),
            format!("echo \"{LATER}\" > bg; setsid sh bg & echo started"),
        ],
        |command| {
            let script =
                [shell(command), Reply::text("one"), shell("echo next"), Reply::text("two")];
            let (server, place) = (Server::start(script), Place::new());
            let mut live = place.start(&server, &[]);
            live.send("first\n");
            live.wait_for_stdout("\none\n");
            place.write("go", "");
            wait_until("it has printed and lives", || place.path("alive").exists());
            live.send("second\n");
            live.wait_for_stdout("\ntwo\n");
            live.send("/quit\n");
            let run = live.finish();
            assert!(result(&server.requests()[1]).ends_with("started\n\n\nexit: 0"), "{run}");
            assert_eq!(result(&server.requests()[3]), "next\n\n\nexit: 0", "{run}");
            assert!(!run.stdout.contains("later") && !run.stdout.contains("lll"), "{run}");
        },
    );
}

#[test]
fn what_never_stops_printing_in_the_background_lives_on_and_holds_nothing_up() {
    each(&["/quit", "SIGTERM"], |end| {
        let endless = shell("yes & echo $! > pid");
        let script = [endless, Reply::text("one"), shell("echo next"), Reply::text("two")];
        let (server, place) = (Server::start(script), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        live.wait_for_stdout("\none\n");
        live.send("second\n");
        live.wait_for_stdout("\ntwo\n");
        let pid = place.read("pid").trim().parse().unwrap();
        assert!(alive(pid), "it has died of its output");
        let start = Instant::now();
        match *end {
            "/quit" => live.send("/quit\n"),
            _ => live.signal(libc::SIGTERM),
        }
        let run = live.finish();
        assert!(start.elapsed() < SOON, "{run}");
        assert_eq!(run.status, if *end == "/quit" { 0 } else { 143 }, "{run}");
        assert_eq!(result(&server.requests()[3]), "next\n\n\nexit: 0", "{run}");
    });
}

/// How many descriptors and threads a process has.
fn held(pid: i32) -> usize {
    let count = |what| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    count("fd") + count("task")
}

#[test]
fn a_background_process_that_has_ended_costs_nothing_more() {
    let command = json!({"command": format!("({LATER}) & echo started")}).to_string();
    let three = ["a", "b", "c"].map(|id| (id, "shell_exec", command.as_str()));
    let script = [shell("true"), Reply::text("one"), Reply::calls(&three), Reply::text("two")];
    let (server, place) = (Server::start(script), Place::new());
    let mut live = place.start(&server, &[]);
    live.send("first\n");
    live.wait_for_stdout("\none\n");
    live.send("!echo on''ward\n");
    live.wait_for_stdout("onward");
    let before = held(live.pid());
    live.send("second\n");
    live.wait_for_stdout("\ntwo\n");
    place.write("go", "");
    wait_until("it has printed and lives", || place.path("alive").exists());
    // One more is no cost of the three: mb may not have been back at its prompt before.
    wait_until("no more descriptors and threads are held", || held(live.pid()) <= before + 1);
}

// ---- What mb inherits, and what the machine lacks

#[test]
fn commands_work_although_mb_has_inherited_an_ignored_sigchld() {
    let server = Server::start([shell("sleep 0.1 | cat; echo hi; exit 3"), Reply::text("done")]);
    let place = Place::new();
    let run = place.mb(&server, &["-"]).ignoring(libc::SIGCHLD).stdin("do it").run();
    assert_eq!(result(&server.requests()[1]), "hi\n\n\nexit: 3", "{run}");
    let run = place.mb(&server, &["-"]).ignoring(libc::SIGCHLD).stdin("!echo hi; exit 3").run();
    assert_eq!((run.status, run.stderr.as_str()), (3, ""), "{run}");
    assert!(run.stdout.contains("hi\n"), "{run}");
}

/// Whether a text names the shell or what it is given, and not only an error's number.
fn names_the_shell(text: &str) -> bool {
    let word = |c: char| !c.is_alphanumeric() && c != '/';
    text.split(word).any(|word| ["sh", "shell", "/dev/null"].contains(&word))
}

#[test]
fn that_there_is_no_shell_is_told_as_that() {
    for broken in [false, true] {
        let (server, place) = (Server::start([shell("true"), Reply::text("done")]), Place::new());
        if broken {
            fs::write(place.home().join("sh"), "no program").unwrap(); // and not executable
        }
        let path = place.home().to_str().unwrap().to_string();
        let run = place.mb(&server, &["-"]).env("PATH", &path).stdin("do it").run();
        let told = result(&server.requests()[1]);
        assert!(told.starts_with("error: ") && names_the_shell(&told), "{told}{run}");
        let run = place.mb(&server, &["-"]).env("PATH", &path).stdin("!true").run();
        assert!(run.status != 0 && names_the_shell(&run.stderr), "{run}");
    }
}

#[test]
fn that_there_is_no_dev_null_is_told_as_that() {
    if cannot(&["strace", "-f", "-o", "/dev/null", "true"]) {
        return;
    }
    let (server, place) = (Server::start([shell("true"), Reply::text("done")]), Place::new());
    let missing = "inject=?open,openat:error=ENOENT";
    let strace = ["strace", "-f", "-o", "/dev/null", "-P", "/dev/null", "-e", missing];
    let run = place.through(&strace, &server, &["-"]).stdin("do it").run();
    let told = result(&server.requests()[1]);
    assert!(told.starts_with("error: ") && names_the_shell(&told), "{told}{run}");
}

/// With little memory a thread cannot be had, and then nobody would stop the command.
#[test]
fn a_command_that_nobody_can_attend_to_does_not_run_on() {
    let (server, mut kilobytes) = (Server::start([]), 2000);
    loop {
        let place = Place::new();
        let limited = format!("ulimit -v {kilobytes}; exec \"$@\"");
        let mb = place.through(&["sh", "-c", &limited, "sh"], &server, &["-", "shell_timeout=1"]);
        let run = mb.stdin("!exec sleep 1000").run();
        nothing_is_left(&place);
        if run.stdout.contains("[timed out after 1s]") {
            return;
        }
        assert!(kilobytes < 1_000_000, "{run}");
        kilobytes += kilobytes / 10;
    }
}

// ---- No terminal, no input

#[test]
fn there_is_no_input_to_wait_for() {
    for (command, result) in [
        ("read x; echo \"$? <$x>\"", "1 <>\n\n\nexit: 0"),
        ("cat", "\n\nexit: 0"),
        ("readlink /proc/self/fd/0", "/dev/null\n\n\nexit: 0"),
        ("tty", "not a tty\n\n\nexit: 1"),
    ] {
        let (server, place) = (Server::start([shell(command), Reply::text("done")]), Place::new());
        place.write("prompt.txt", "do it");
        let mut live = place.start(&server, &["prompt.txt"]); // mb's own input is left open
        live.send("not for the command\n");
        let run = live.finish();
        assert_eq!(self::result(&server.requests()[1]), result, "{command}{run}");
    }
}

#[test]
fn there_is_no_terminal_to_ask_for_a_password() {
    for command in ["cat /dev/tty", "read x < /dev/tty", "echo prompt > /dev/tty"] {
        let status = run(command).rsplit_once("\n\nexit: ").unwrap().1.to_string();
        assert_ne!(status, "0", "{command}");
        assert_ne!(status, "124", "{command}");
    }
}

// ---- Bounds

/// An output of so many letters between `<` and `>`.
fn letters(count: usize) -> String {
    format!("printf '<'; head -c {} /dev/zero | tr '\\0' a; printf '>'", count - 2)
}

#[test]
fn an_output_of_50_000_bytes_is_whole() {
    let whole = |count: usize| format!("<{}>\n\nexit: 0", "a".repeat(count - 2));
    for count in [25_000, 25_001, 49_999, 50_000] {
        assert_eq!(run(&letters(count)), whole(count), "{count}");
    }
}

#[test]
fn of_a_longer_output_both_ends_are_kept_and_the_rest_is_counted() {
    for count in [50_001, 50_002, 75_000, 115_536, 1_000_000] {
        let result = run(&letters(count));
        let marker = format!("[... {} bytes omitted ...]", count - 50_000);
        let (start, end) = result.split_once(&marker).expect(&marker);
        assert_eq!(start.trim_end(), format!("<{}", "a".repeat(24_999)), "{count}");
        let end = end.trim_start().strip_suffix("\n\nexit: 0").expect("the status");
        assert_eq!(end, format!("{}>", "a".repeat(24_999)), "{count}");
    }
}

#[test]
fn an_output_that_comes_in_small_pieces_is_bounded_alike() {
    let command = "i=10000; while [ $i -lt 19999 ]; do echo $i$i; i=$((i+1)); done; echo; echo end";
    let lines: String =
        (10_000..19_999).map(|n| format!("{n}{n}\n")).collect::<String>() + "\nend\n";
    let result = run(command);
    let (start, end) = result.split_once("[... 59994 bytes omitted ...]").expect("the marker");
    assert_eq!(lines.len(), 109_994);
    assert_eq!(start.strip_suffix('\n').unwrap_or(start), &lines[..25_000]);
    let end = end.strip_prefix('\n').unwrap_or(end);
    assert_eq!(end, format!("{}\n\nexit: 0", &lines[lines.len() - 25_000..]));
}

#[test]
fn three_hundred_megabytes_of_output_take_no_memory() {
    let half = "yes 0123456789abcde | head -c 150000000";
    let command = &format!("echo START; {half}; touch half; {half}; echo END");
    let server = Server::start([shell(command), Reply::text("done")]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("do it\n");
    wait_until("half of it is printed", || place.path("half").exists());
    server.wait_for_requests(2);
    live.wait_for_stdout("\ndone\n");
    let peak = peak_memory(live.pid());
    live.send("/quit\n");
    let run = live.finish();
    let result = result(&server.requests()[1]);
    assert!(result.starts_with("START\n0123456789abcde\n"), "{run}");
    assert!(result.contains("[... 299950010 bytes omitted ...]"), "{run}");
    assert!(result.ends_with("0123456789abcde\nEND\n\n\nexit: 0"), "{run}");
    // A run that prints nothing tells what mb needs anyway.
    let server = Server::start([shell("true"), Reply::text("done")]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("do it\n");
    live.wait_for_stdout("\ndone\n");
    let least = peak_memory(live.pid());
    assert!(peak < least + 8_000, "{peak} kB, without output {least} kB");
}

/// In kilobytes, so far.
fn peak_memory(pid: i32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn zero_bytes_without_end_are_no_output() {
    let (result, run) = run_in(&Place::new(), "echo a; head -c 30M /dev/zero; echo b", &[]);
    assert!(result.starts_with("a\n"), "{run}");
    assert!(result.contains(" bytes omitted ...]"), "{run}");
    assert!(result.ends_with("b\n\n\nexit: 0") && result.len() < 1000, "{run}");
}

#[test]
fn bytes_that_are_not_utf_8_are_replaced() {
    for (command, result) in [
        (r"printf 'a\377b'", "a\u{fffd}b"),
        (r"printf 'a\303'", "a\u{fffd}"),
        (r"printf '\200\303\251'", "\u{fffd}\u{e9}"),
        (r"printf 'caf\351 \342\234\223'", "caf\u{fffd} \u{2713}"),
    ] {
        assert_eq!(run(command), format!("{result}\n\nexit: 0"));
    }
}

#[test]
fn a_long_line_of_wide_characters_is_cut_without_harm() {
    for shift in ["", "x", "xy"] {
        let place = Place::new();
        place.write("long", format!("{shift}{}", "\u{6f22}".repeat(30_000)));
        let (result, run) = run_in(&place, "cat long", &[]);
        let (start, end) = result.split_once("[... ").expect("the marker");
        let kept = "\u{6f22}".repeat(8_330); // 24,990 bytes
        assert!(start.starts_with(&format!("{shift}{kept}")), "{run}");
        assert!(end.ends_with(&format!("{kept}\n\nexit: 0")), "{run}");
        let cut = start.trim_end().trim_end_matches(['\u{6f22}', '\u{fffd}']);
        assert_eq!(cut, shift, "{run}");
    }
}

#[test]
fn a_command_of_200_kilobytes_is_an_error_for_the_model() {
    let command = format!("echo hi #{}", "x".repeat(200_000));
    let (result, run) = run_in(&Place::new(), &command, &[]);
    assert!(result.starts_with("error: "), "{result}");
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    let command = format!("echo hi #{}", "x".repeat(100_000));
    assert_eq!(self::run(&command), "hi\n\n\nexit: 0");
}

// ---- !CMD

#[test]
fn in_file_mode_a_command_of_the_users_gives_its_output_and_status() {
    each(
        &[
            ("!echo hi", "hi", 0),
            ("!echo hi >&2; exit 3", "hi", 3),
            ("!kill -9 $$", "", 137),
            ("!no-such-command-here", "no-such-command-here", 127),
            ("!echo one\necho two\n", "one\ntwo", 0),
            ("!echo early; sleep 300", "early", 124),
            ("!sleep 300 & echo started", "started", 0),
            ("! echo spaced; false", "spaced", 1),
        ],
        |&(command, output, status)| {
            let (server, place) = (Server::start([]), Place::new());
            place.write("prompt.txt", command);
            for (args, stdin) in [(["prompt.txt"], ""), (["-"], command)] {
                let args = [&args[..], &["shell_timeout=1"]].concat();
                let run = place.run(&server, &args, stdin);
                assert_eq!(run.status, status, "{run}");
                assert!(run.stdout.contains(output), "{run}");
                assert_eq!(run.stderr, "", "{run}");
            }
            assert_eq!(server.connections(), 0);
        },
    );
}

#[test]
fn a_command_of_the_users_is_not_part_of_the_conversation() {
    let server = Server::start([Reply::text("one"), Reply::text("two")]);
    let run = Place::new().run(&server, &[], "!echo zero\nfirst\n!exit 3\n!echo hi\nsecond\n");
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("zero") && run.stdout.contains("hi"), "{run}");
    assert_eq!(server.requests()[1].roles(), ["system", "user", "assistant", "user"], "{run}");
}

#[test]
fn a_command_of_the_users_that_cannot_start_fails_without_a_panic() {
    let long = format!("!echo hi #{}", "x".repeat(200_000));
    for command in ["!echo a\0b", &long] {
        let server = Server::start([]);
        let run = Place::new().run(&server, &["-"], command);
        assert_ne!(run.status, 101, "{run}");
        assert!(!run.stderr.contains("panicked"), "{run}");
    }
}

// ---- Interrupted

const STUBBORN: &str = "trap '' INT TERM HUP; sleep 300 & touch up; while :; do sleep 1; done";

const SIGNALS: [(i32, i32); 4] =
    [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129), (libc::SIGQUIT, 131)];

#[test]
fn a_signal_leaves_no_process_of_a_running_command() {
    each(&SIGNALS, |&(signal, status)| {
        for by_user in [false, true] {
            let server = Server::start((!by_user).then(|| shell(STUBBORN)));
            let place = Place::new();
            let prompt = if by_user { format!("!{STUBBORN}") } else { "do it".into() };
            let mut live = place.start(&server, &["-"]);
            live.send(&prompt);
            live.close_stdin();
            wait_until("the command runs", || place.path("up").exists());
            let start = Instant::now();
            live.signal(signal);
            let run = live.finish();
            assert_eq!(run.status, status, "{run}");
            assert!(start.elapsed() < SOON, "{run}");
            nothing_is_left(&place);
        }
    });
}

// ---- Process groups of their own

/// `timeout` puts itself and its command into a process group of its own.
mod needs_groups {
    use super::*;

    #[test]
    fn a_group_of_its_own_in_the_background_outlives_its_call() {
        let command =
            "timeout 300 sh -c 'echo $$ > pid; sleep 300' & until [ -s pid ]; do sleep 0.02; done";
        let script = [shell(command), Reply::text("one"), shell("sleep 300"), Reply::text("two")];
        let (server, place) = (Server::start(script), Place::new());
        let prompts = "first\nsecond\n!kill -0 $(cat pid) && echo al''ive\n";
        let run = place.run(&server, &["shell_timeout=1"], prompts);
        assert!(result(&server.requests()[3]).contains("[timed out after 1s]"), "{run}");
        assert!(run.stdout.contains("alive\n"), "killed with another call{run}");
    }
}

// ---- What needs more than the core

mod needs_terminal {
    use super::*;

    #[test]
    fn a_command_takes_nothing_of_what_the_user_types() {
        let command = "until [ -e go ]; do sleep 0.02; done; cat; read x; echo \"<$x>\"; \
            tty; cat /dev/tty; echo prompt > /dev/tty; [ -t 1 ] || [ -t 2 ] || echo none";
        let server = Server::start([shell(command), Reply::text("one"), Reply::text("two")]);
        let place = Place::new();
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text("first\r");
        terminal.wait_for("[tool call: ");
        terminal.type_text("typed early\r");
        terminal.wait_for("typed early"); // its echo
        place.write("go", "");
        server.wait_for_requests(3);
        terminal.wait_for("two");
        terminal.type_text("/quit\r");
        let run = terminal.finish();
        let result = result(&server.requests()[1]);
        assert!(result.starts_with("<>\nnot a tty\n"), "{result}{run}");
        assert!(!result.contains("typed"), "{result}{run}");
        assert!(result.ends_with("none\n\n\nexit: 0"), "{result}{run}");
        assert_eq!(
            server.requests()[2].messages().last().unwrap()["content"],
            "typed early",
            "{run}"
        );
    }

    #[test]
    fn a_command_of_the_users_has_no_terminal_either() {
        for command in ["cat", "read x; echo hi", "cat /dev/tty", "sh -i < /dev/tty"] {
            let (server, place) = (Server::start([]), Place::new());
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            terminal.type_text(&format!("!{command}\r"));
            terminal.wait_for("> ");
            terminal.type_text("!echo al''ive\r");
            terminal.wait_for("alive");
            terminal.type_text("/quit\r");
            let run = terminal.finish();
            assert_eq!(run.status, 0, "{run}");
        }
    }

    #[test]
    fn after_a_command_was_interrupted_the_conversation_goes_on() {
        let stubborn = json!({"command": STUBBORN}).to_string();
        let calls = [("c1", "shell_exec", stubborn.as_str()), ("c2", "shell_exec", &stubborn)];
        let server = Server::start([Reply::calls(&calls), Reply::text("two")]);
        let place = Place::new();
        let mut terminal = place.terminal(&server, &[]);
        terminal.type_text("first\r");
        wait_until("the command runs", || place.path("up").exists());
        terminal.key(CTRL_C);
        terminal.wait_for("[interrupted]");
        let mb = terminal.live.pid();
        wait_until("the command is gone", || processes(&place) == [mb]);
        terminal.type_text("second\r");
        terminal.wait_for("two");
        terminal.type_text("/quit\r");
        let run = terminal.finish();
        let requests = server.requests();
        let roles = ["system", "user", "assistant", "tool", "tool", "assistant", "user"];
        assert_eq!(requests[1].roles(), roles, "{run}");
        for (message, id) in requests[1].messages()[3..5].iter().zip(["c1", "c2"]) {
            let told =
                json!({"role": "tool", "tool_call_id": id, "content": "interrupted by the user"});
            assert_eq!(*message, told, "{run}");
        }
        assert_eq!(requests[1].messages()[5]["content"], Value::from("(stopped)"), "{run}");
    }
}

mod needs_quiet {
    use super::*;

    #[test]
    fn a_command_of_the_users_prints_its_output_in_spite_of_quiet() {
        let server = Server::start([]);
        let run = Place::new().run(&server, &["-", "quiet=true"], "!echo hi");
        assert!(run.stdout.contains("hi\n"), "{run}");
    }
}

mod needs_sessions {
    use super::*;

    #[test]
    fn sigterm_during_a_command_saves_the_session() {
        let server = Server::start([shell(STUBBORN)]);
        let place = Place::new();
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        wait_until("the command runs", || place.path("up").exists());
        live.signal(libc::SIGTERM);
        let run = live.finish();
        assert_eq!(run.status, 143, "{run}");
        nothing_is_left(&place);
        let last = place.session()["messages"].as_array().unwrap().last().cloned().unwrap();
        assert_eq!(last["content"], "interrupted by the user", "{run}");
    }
}
