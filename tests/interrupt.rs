//! Ctrl+C, SIGTERM, SIGHUP and a closed terminal, wherever they come (§12 of the contract).

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use common::*;
use libc::{SIGHUP, SIGINT, SIGTERM};
use serde_json::{Value, json};

/// Runs each case in a thread of its own: they wait far more than they work.
fn each<T: Sync>(cases: &[T], test: impl Fn(&T) + Sync) {
    thread::scope(|scope| cases.iter().for_each(|case| drop(scope.spawn(|| test(case)))));
}

/// Where a turn can be when a signal comes: what the server does, and how the test knows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    FirstByte,
    HalfHead,
    Head,
    Text,
    Reasoning,
    HalfCall,
    HalfJson,
    Command,
}

const REPLY: [At; 7] =
    [At::FirstByte, At::HalfHead, At::Head, At::Text, At::Reasoning, At::HalfCall, At::HalfJson];
const ALL: [At; 8] = [
    At::FirstByte,
    At::HalfHead,
    At::Head,
    At::Text,
    At::Reasoning,
    At::HalfCall,
    At::HalfJson,
    At::Command,
];

/// Children that ignore signals, in the background and in front, and one that is killed alone.
const STUBBORN: &str = "trap '' INT TERM HUP; echo part; sleep 300 & (sleep 300; true) & \
    touch started; sleep 300; touch survived";

impl At {
    fn reply(self) -> Reply {
        let half = |fields: Value| Reply::sse(&[&delta(fields)]).stall();
        let call = |arguments| {
            let function = json!({"name": "shell_exec", "arguments": arguments});
            json!({"tool_calls": [{"index": 0, "id": "c1", "function": function}]})
        };
        match self {
            At::FirstByte => Reply::hang(),
            At::HalfHead => Reply::raw("HTTP/1.1 200 OK\r\nContent-Ty"),
            At::Head => Reply::sse(&[]).stall(),
            At::Text => half(json!({"content": "half a word"})),
            At::Reasoning => half(json!({"reasoning_content": "half a thought"})),
            At::HalfCall => half(call("{\"command\":\"touch survived\"")),
            At::HalfJson => {
                Reply::json(json!({"choices": [{"message": {"content": "x"}}]})).stall()
            }
            At::Command => {
                let stubborn = json!({"command": STUBBORN}).to_string();
                let second = r#"{"command":"touch survived"}"#;
                Reply::calls(&[
                    ("c1", "shell_exec", r#"{"command":"echo one"}"#),
                    ("c2", "shell_exec", &stubborn),
                    ("c3", "shell_exec", second),
                ])
            }
        }
    }

    /// Waits until mb is there.
    fn wait(self, place: &Place, server: &Server, live: &mut Live) {
        server.wait_for_requests(1);
        match self {
            At::Text => live.wait_for_stdout("half a word"),
            At::Reasoning => live.wait_for_stdout("half a thought"),
            At::Command => wait_until("it runs", || place.path("started").exists()),
            _ => {}
        }
    }

    /// What such a turn leaves behind the system prompt, as the next request or a session has it.
    fn assert_left(self, messages: &[Value]) {
        let roles: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
        if self != At::Command {
            assert_eq!(roles, ["user"], "{self:?}");
            return;
        }
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "tool"]);
        for (message, id, content) in [
            (&messages[2], "c1", "one\n\n\nexit: 0"),
            (&messages[3], "c2", "interrupted by the user"),
            (&messages[4], "c3", "interrupted by the user"),
        ] {
            assert_eq!(message["tool_call_id"], id);
            assert_eq!(message["content"], content);
        }
    }
}

/// No process is left that was started in this place.
fn assert_nothing_runs(place: &Place) {
    let folder = place.work().to_str().unwrap().to_string();
    wait_until("no process is left", || processes_with(&folder).into_iter().all(|pid| !alive(pid)));
    assert!(!place.path("survived").exists());
}

// ---- Ctrl+C

#[test]
fn ctrl_c_ends_a_turn_wherever_it_is_and_the_next_one_works() {
    each(&ALL, |at| {
        let (server, place) =
            (Server::start([at.reply(), Reply::text("the answer")]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        at.wait(&place, &server, &mut live);
        live.signal(SIGINT);
        live.wait_for_stderr("[interrupted]");
        live.send("second\n");
        live.wait_for_stdout("the answer");
        live.close_stdin();
        let run = live.finish();
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(run.stderr.matches("[interrupted]").count(), 1, "{run}");
        assert!(!run.stdout.contains("[interrupted]"), "{run}");
        let requests = server.requests();
        let (last, before) = requests[1].messages().split_last().unwrap();
        if *at == At::Command {
            let (stopped, before) = before.split_last().unwrap();
            assert_eq!(*stopped, json!({"role": "assistant", "content": "(stopped)"}), "{run}");
            assert_eq!(last["content"], "second", "{run}");
            at.assert_left(&before[1..]);
        } else {
            assert_eq!(last["content"], "first\n\nsecond", "{run}");
            assert_eq!(before.len(), 1, "{run}");
        }
        assert_nothing_runs(&place);
    });
}

#[test]
fn ctrl_c_in_file_mode_exits_with_130() {
    each(&ALL, |at| {
        let (server, place) = (Server::start([at.reply()]), Place::new());
        place.write("p.txt", "hello");
        let mut live = place.start(&server, &["p.txt"]);
        at.wait(&place, &server, &mut live);
        live.signal(SIGINT);
        let run = live.finish();
        assert_eq!(run.status, 130, "{run}");
        assert!(run.stderr.contains("[interrupted]"), "{run}");
        assert_eq!(server.requests().len(), 1, "{run}");
        assert_nothing_runs(&place);
    });
}

#[test]
fn ctrl_c_closes_the_connection_at_once() {
    each(&REPLY, |at| {
        let (server, place) = (Server::start([at.reply()]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        at.wait(&place, &server, &mut live);
        live.signal(SIGINT);
        server.wait_for_end(server.requests()[0].connection);
        live.send("!echo $((40 + 2))\n"); // mb itself is still there
        live.wait_for_stdout("42");
    });
}

#[test]
fn nothing_of_an_interrupted_turn_is_stored_but_the_prompt_and_finished_iterations() {
    each(&ALL, |at| {
        let (server, place) = (Server::start([at.reply()]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        at.wait(&place, &server, &mut live);
        live.signal(SIGINT);
        live.wait_for_stderr("[interrupted]");
        live.send("/quit\n");
        let run = live.finish();
        assert_eq!(run.status, 0, "{run}");
        at.assert_left(&place.session()["messages"].as_array().unwrap()[1..]);
    });
}

#[test]
fn ctrl_c_in_a_later_iteration_keeps_the_earlier_ones() {
    let call = Reply::calls(&[("c1", "shell_exec", r#"{"command":"echo one"}"#)]);
    let server = Server::start([call, At::Text.reply()]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("first\n");
    live.wait_for_stdout("half a word");
    live.signal(SIGINT);
    live.wait_for_stderr("[interrupted]");
    live.close_stdin();
    let run = live.finish();
    let session = place.session();
    let roles: Vec<_> = session["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"], "{run}");
    assert_eq!(session["messages"][3]["content"], "one\n\n\nexit: 0", "{run}");
}

#[test]
fn ctrl_c_ends_the_wait_for_a_retry() {
    each(&[false, true], |file_mode| {
        let server = Server::start((0..5).map(|_| Reply::status(503, "busy")));
        let place = Place::new();
        place.write("p.txt", "first");
        let mut live = place.start(&server, if *file_mode { &["p.txt"] } else { &[] });
        live.send("first\n");
        live.wait_for_stderr("[retry 5/9 in 5s: ");
        let start = Instant::now();
        live.signal(SIGINT);
        live.wait_for_stderr("[interrupted]");
        assert!(start.elapsed() < Duration::from_secs(4));
        if !file_mode {
            server.push(Reply::text("the answer"));
            live.send("second\n");
            live.wait_for_stdout("the answer");
            assert_eq!(server.requests()[5].messages()[1]["content"], "first\n\nsecond");
            live.close_stdin();
        }
        let run = live.finish();
        assert_eq!(run.status, if *file_mode { 130 } else { 0 }, "{run}");
    });
}

/// A socket to which nobody can connect: its queue is full, and nobody accepts.
fn full_socket() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address: SocketAddr = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok();
    let queue = std::iter::from_fn(connect).collect();
    (listener, queue)
}

#[test]
fn ctrl_c_ends_a_connection_attempt_that_hangs() {
    let (listener, _queue) = full_socket();
    let endpoint = format!("endpoint=http://{}/v1", listener.local_addr().unwrap());
    let server = Server::start([Reply::text("the answer")]);
    let place = Place::new();
    place.write("p.txt", "first");
    let mut live = place.mb(&server, &["p.txt", &endpoint]).start();
    live.wait_for_stdout("...requesting...");
    live.signal(SIGINT);
    let run = live.finish();
    assert_eq!(run.status, 130, "{run}");
    let mut live = place.mb(&server, &[&endpoint]).start();
    live.send("first\n");
    live.wait_for_stdout("...requesting...");
    live.signal(SIGINT);
    live.wait_for_stderr("[interrupted]");
    live.send(format!("/cfg endpoint {}\nsecond\n", server.url()));
    live.wait_for_stdout("the answer");
    assert_eq!(server.requests()[0].messages()[1]["content"], "first\n\nsecond");
}

#[test]
fn ctrl_c_kills_a_shell_line_and_its_children() {
    let (server, place) = (Server::start([Reply::text("the answer")]), Place::new());
    let mut live = place.start(&server, &[]);
    live.send(format!("!{STUBBORN}\n"));
    wait_until("it runs", || place.path("started").exists());
    live.signal(SIGINT);
    live.wait_for_stderr("[interrupted]");
    live.send("hello\n");
    live.wait_for_stdout("the answer");
    live.close_stdin();
    let run = live.finish();
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(server.requests()[0].roles(), ["system", "user"], "{run}");
    assert_nothing_runs(&place);
    place.write("p.txt", format!("!rm started; {STUBBORN}"));
    let live = place.start(&server, &["p.txt"]);
    wait_until("it runs again", || place.path("started").exists());
    live.signal(SIGINT);
    let run = live.finish();
    assert_eq!(run.status, 130, "{run}");
    assert_nothing_runs(&place);
}

#[test]
fn ctrl_c_ends_what_a_command_awaits_and_changes_nothing() {
    each(&["/compact", "/models"], |command| {
        let (server, place) = (Server::start([Reply::text("one"), Reply::hang()]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        live.wait_for_stdout("[tokens: ");
        server.set_models(Reply::hang());
        let asked = server.model_requests().len();
        live.send(format!("{command}\n"));
        wait_until("it is asked", || {
            server.requests().len() == 2 || server.model_requests().len() > asked
        });
        live.signal(SIGINT);
        live.wait_for_stderr("[interrupted]");
        live.send("!echo $((40 + 2))\n");
        live.wait_for_stdout("42");
        live.close_stdin();
        let run = live.finish();
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(place.session()["messages"].as_array().unwrap().len(), 3, "{run}");
    });
}

#[test]
fn ctrl_c_at_the_question_about_a_call_ends_the_turn() {
    let call = Reply::calls(&[("c1", "shell_exec", r#"{"command":"touch survived"}"#)]);
    let (server, place) = (Server::start([call, Reply::text("the answer")]), Place::new());
    place.config(&server, "confirm=true");
    let mut terminal = place.terminal(&server, &[]);
    terminal.wait_for("> ");
    terminal.type_text("first\r");
    terminal.wait_for("Run it? [y/N]");
    terminal.key(CTRL_C);
    terminal.wait_for("[interrupted]");
    terminal.wait_for("> ");
    terminal.type_text("second\r");
    terminal.wait_for("the answer");
    let roles = ["system", "user", "assistant", "tool", "assistant", "user"];
    assert_eq!(server.requests()[1].roles(), roles);
    assert!(!place.path("survived").exists());
}

#[test]
fn a_second_ctrl_c_that_finds_the_first_without_effect_exits_with_130() {
    // Nobody reads: mb is stuck in the middle of printing.
    let text = "x".repeat(3_000_000);
    let (server, place) = (Server::start([Reply::text(&text)]), Place::new());
    let (reader, writer) = io::pipe().unwrap();
    let mut live = place.mb(&server, &[]).stdout(writer).limit(20).start();
    live.send("first\n");
    wait_until("the pipe is full", || {
        let mut ready = 0;
        unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &mut ready) };
        ready >= 60_000
    });
    live.signal(SIGINT);
    wait_until("the first is delivered", || {
        let status = fs::read_to_string(format!("/proc/{}/status", live.pid())).unwrap();
        let pending = status.lines().filter(|line| line.contains("Pnd:"));
        pending.map(str::trim_end).all(|line| line.ends_with("0000000000000000"))
    });
    live.signal(SIGINT);
    let run = live.finish();
    assert_eq!(run.status, 130, "{run}");
}

// ---- At the prompt

#[test]
fn ctrl_c_at_the_prompt_drops_the_line_and_prompts_anew() {
    let (server, place) = (Server::start([Reply::text("the answer")]), Place::new());
    let mut terminal = place.terminal(&server, &[]);
    terminal.wait_for("> ");
    for typed in [&["half a line"][..], &[], &["continued\\\r", "half"]] {
        for (place, part) in typed.iter().enumerate() {
            if place > 0 {
                terminal.wait_for("\n> "); // the line has been read: Ctrl+C drops what has not
            }
            terminal.type_text(part);
            terminal.wait_for(part.trim_end()); // its echo
        }
        terminal.key(CTRL_C);
        terminal.wait_for("\n> ");
    }
    terminal.type_text("hello\r");
    terminal.wait_for("the answer");
    terminal.wait_for("\n> ");
    terminal.type_text("/quit\r");
    let run = terminal.finish();
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(server.requests()[0].messages()[1]["content"], "hello", "{run}");
}

#[test]
fn ctrl_c_between_two_turns_ends_nothing() {
    let server = Server::start([Reply::text("one"), Reply::text("two")]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("first\n");
    wait_until("it is saved", || place.sessions().join(place.project_id() + ".json").exists());
    live.signal(SIGINT);
    live.send("second\n/quit\n");
    let run = live.finish();
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("two"), "{run}");
    assert_eq!(server.requests()[1].roles(), ["system", "user", "assistant", "user"], "{run}");
}

#[test]
fn on_a_terminal_ctrl_c_ends_a_turn_and_a_command() {
    each(&[At::FirstByte, At::Text, At::Command], |at| {
        let (server, place) =
            (Server::start([at.reply(), Reply::text("the answer")]), Place::new());
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text("first\r");
        at.wait(&place, &server, &mut terminal.live);
        terminal.key(CTRL_C);
        terminal.wait_for("[interrupted]");
        terminal.wait_for("> ");
        terminal.type_text("second\r");
        terminal.wait_for("the answer");
        terminal.wait_for("> ");
        terminal.key(CTRL_D);
        let run = terminal.finish();
        assert_eq!(run.status, 0, "{run}");
        assert_nothing_runs(&place);
    });
}

/// How often the threads of a process slept and woke, and the CPU time that they took.
fn activity(pid: i32) -> (usize, u64, u64) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let (mut threads, mut switches, mut ticks) = (0, 0, 0);
    for task in tasks {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let counts = status.lines().filter(|line| line.contains("ctxt_switches:"));
        let number = |text: &str| text.split_whitespace().next_back()?.parse::<u64>().ok();
        switches += counts.filter_map(number).sum::<u64>();
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        ticks += fields.iter().skip(11).take(2).filter_map(|field| number(field)).sum::<u64>();
        threads += 1;
    }
    (threads, switches, ticks)
}

#[test]
fn at_the_prompt_mb_sleeps() {
    let call = Reply::calls(&[("c1", "shell_exec", r#"{"command":"echo hi"}"#)]);
    let server = Server::start([call, Reply::text("one"), At::Text.reply()]);
    let place = Place::new();
    let mut terminal = place.terminal(&server, &[]);
    terminal.wait_for("> ");
    let quiet_second = |when: &str, pid| {
        // One of these seconds is quiet; of a poller, none.
        let quiet = (0..10).any(|_| {
            let before = activity(pid);
            thread::sleep(Duration::from_secs(1));
            activity(pid) == before
        });
        assert!(quiet, "never still {when}");
    };
    quiet_second("at the first prompt", terminal.live.pid());
    terminal.type_text("first\r");
    terminal.wait_for("[tokens: ");
    terminal.wait_for("> ");
    terminal.type_text("half a line");
    quiet_second("after a turn", terminal.live.pid());
    terminal.key(CTRL_C);
    terminal.wait_for("\n> ");
    terminal.type_text("second\r");
    terminal.wait_for("half a word");
    terminal.key(CTRL_C);
    terminal.wait_for("[interrupted]");
    terminal.wait_for("> ");
    quiet_second("after an interrupt", terminal.live.pid());
    let mut live = place.start(&server, &[]);
    live.send("!echo $((40 + 2))\n");
    live.wait_for_stdout("42");
    quiet_second("on a pipe", live.pid());
}

// ---- SIGTERM and SIGHUP

const ENDS: [(i32, i32); 2] = [(SIGTERM, 143), (SIGHUP, 129)];

#[test]
fn sigterm_and_sighup_end_a_turn_save_the_session_and_tell_the_signal() {
    let cases: Vec<_> = ALL.iter().flat_map(|at| ENDS.map(|end| (*at, end))).collect();
    each(&cases, |(at, (signal, status))| {
        let (server, place) = (Server::start([at.reply()]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        at.wait(&place, &server, &mut live);
        live.signal(*signal);
        let run = live.finish();
        assert_eq!(run.status, *status, "{run}");
        assert_eq!(server.requests().len(), 1, "{run}");
        at.assert_left(&place.session()["messages"].as_array().unwrap()[1..]);
        assert_nothing_runs(&place);
    });
}

#[test]
fn sigterm_and_sighup_in_file_mode_exit_with_their_number() {
    let cases: Vec<_> = ALL.iter().flat_map(|at| ENDS.map(|end| (*at, end))).collect();
    each(&cases, |(at, (signal, status))| {
        let (server, place) = (Server::start([at.reply()]), Place::new());
        place.write("p.txt", "first");
        let mut live = place.start(&server, &["p.txt"]);
        at.wait(&place, &server, &mut live);
        live.signal(*signal);
        let run = live.finish();
        assert_eq!(run.status, *status, "{run}");
        assert!(!place.sessions().join(place.project_id() + ".json").exists(), "{run}");
        assert_nothing_runs(&place);
    });
}

#[test]
fn sigterm_and_sighup_end_the_wait_for_a_retry() {
    each(&ENDS, |(signal, status)| {
        let server = Server::start((0..5).map(|_| Reply::status(503, "busy")));
        let place = Place::new();
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        live.wait_for_stderr("[retry 5/9 in 5s: ");
        let start = Instant::now();
        live.signal(*signal);
        let run = live.finish();
        assert!(start.elapsed() < Duration::from_secs(4), "{run}");
        assert_eq!(run.status, *status, "{run}");
        assert_eq!(place.session()["messages"][1]["content"], "first", "{run}");
    });
}

#[test]
fn sigterm_and_sighup_end_a_shell_line_and_its_children() {
    each(&ENDS, |(signal, status)| {
        let (server, place) = (Server::start([Reply::text("one")]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send(format!("first\n!{STUBBORN}\n"));
        wait_until("it runs", || place.path("started").exists());
        live.signal(*signal);
        let run = live.finish();
        assert_eq!(run.status, *status, "{run}");
        assert_eq!(place.session()["messages"].as_array().unwrap().len(), 3, "{run}");
        assert_nothing_runs(&place);
    });
}

#[test]
fn sigterm_and_sighup_at_the_prompt_save_and_end() {
    each(&ENDS, |(signal, status)| {
        let (server, place) = (Server::start([Reply::text("one")]), Place::new());
        place.config(&server, "context_window=10");
        fs::create_dir_all(place.sessions()).unwrap();
        let old = json!([{"role": "user", "content": "loaded"}]).to_string();
        fs::write(place.sessions().join("old.json"), old).unwrap();
        let mut live = place.start(&server, &[]);
        live.send("/load old\n!echo $((40 + 2))\n");
        live.wait_for_stdout("42");
        live.signal(*signal);
        let run = live.finish();
        assert_eq!(run.status, *status, "{run}");
        assert_eq!(place.session()["messages"][1]["content"], "loaded", "{run}");
        let mut terminal = place.terminal(&server, &[]); // with a half-typed line, and at a question
        terminal.wait_for("> ");
        terminal.type_text("first\r");
        terminal.wait_for("[Y/n]: ");
        terminal.live.signal(*signal);
        assert_eq!(terminal.finish().status, *status);
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text("half");
        terminal.wait_for("half");
        terminal.live.signal(*signal);
        assert_eq!(terminal.finish().status, *status);
        assert_eq!(server.requests().len(), 1);
    });
}

#[test]
fn a_signal_during_compact_leaves_the_conversation() {
    let (server, place) = (Server::start([Reply::text("one"), Reply::hang()]), Place::new());
    let mut live = place.start(&server, &[]);
    live.send("first\n/compact\n");
    server.wait_for_requests(2);
    live.signal(SIGTERM);
    let run = live.finish();
    assert_eq!(run.status, 143, "{run}");
    assert_eq!(place.session()["messages"].as_array().unwrap().len(), 3, "{run}");
}

#[test]
fn a_signal_tells_its_number_where_nothing_can_be_saved() {
    for home in ["", "/proc"] {
        let (server, place) = (Server::start([Reply::text("one")]), Place::new());
        let mut live = place.mb(&server, &[]).env("HOME", home).start();
        live.send("first\n");
        live.wait_for_stdout("[tokens: ");
        live.send("!echo $((40 + 2))\n");
        live.wait_for_stdout("42");
        live.signal(SIGTERM);
        let run = live.finish();
        assert_eq!(run.status, 143, "{run}");
    }
}

#[test]
fn an_ignored_sighup_stays_ignored() {
    let gate = Gate::default();
    let server = Server::start([Reply::text("one").held(&gate), Reply::text("two")]);
    let place = Place::new();
    let mut live = place.mb(&server, &[]).ignoring(SIGHUP).start();
    live.send("first\n");
    server.wait_for_requests(1);
    live.signal(SIGHUP);
    gate.open();
    live.wait_for_stdout("one");
    live.signal(SIGHUP);
    live.send("second\n/quit\n");
    let run = live.finish();
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("two") && !run.stderr.contains("interrupted"), "{run}");
}

// ---- The terminal is closed

#[test]
fn a_closed_terminal_ends_a_turn_and_the_session_is_saved() {
    each(&ALL, |at| {
        let (server, place) = (Server::start([at.reply()]), Place::new());
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text("first\r");
        at.wait(&place, &server, &mut terminal.live);
        terminal.hang_up();
        let run = terminal.finish();
        assert_eq!(run.status, 129, "{at:?}{run}");
        at.assert_left(&place.session()["messages"].as_array().unwrap()[1..]);
        assert_nothing_runs(&place);
    });
}

#[test]
fn a_terminal_closed_at_the_prompt_saves_and_ends() {
    let (server, place) = (Server::start([]), Place::new());
    fs::create_dir_all(place.sessions()).unwrap();
    let old = json!([{"role": "user", "content": "loaded"}]).to_string();
    fs::write(place.sessions().join("old.json"), old).unwrap();
    let mut terminal = place.terminal(&server, &[]);
    terminal.wait_for("> ");
    terminal.type_text("/load old\r");
    terminal.wait_for("\n> ");
    terminal.hang_up();
    let run = terminal.finish();
    assert_eq!(run.status, 129, "{run}");
    assert_eq!(place.session()["messages"][1]["content"], "loaded", "{run}");
}
