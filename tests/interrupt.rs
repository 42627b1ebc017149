//! Ctrl+C, SIGTERM, SIGHUP, SIGQUIT and a closed terminal, wherever they come (§12 of the contract).

#[macro_use]
mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::*;
use libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
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

/// Of these, mb has the whole reply or nothing of it to show.
const REPLY: [At; 5] = [At::FirstByte, At::HalfHead, At::Head, At::HalfCall, At::HalfJson];
const ALL: [At; 6] =
    [At::FirstByte, At::HalfHead, At::Head, At::HalfCall, At::HalfJson, At::Command];
/// And of these, what came before is shown already.
const STREAMED: [At; 2] = [At::Text, At::Reasoning];

/// The reply to a first prompt, "hello".
fn hello() -> Reply {
    Reply::text("hello yourself")
}

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
        self.wait_in(1, place, server, live);
    }

    /// The same where this is not the first request.
    fn wait_in(self, request: usize, place: &Place, server: &Server, live: &mut Live) {
        server.wait_for_requests(request);
        match self {
            At::Text => live.wait_for_stdout("half a word"),
            At::Reasoning => live.wait_for_stdout("half a thought"),
            At::Command => wait_until("it runs", || place.path("started").exists()),
            _ => {}
        }
    }

    /// What it leaves behind a first turn that was answered, since nothing is saved before.
    fn assert_saved(self, place: &Place) {
        let session = place.session();
        let messages = session["messages"].as_array().unwrap();
        assert_eq!(messages[1]["content"], "hello", "{session}");
        assert_eq!(messages[2]["content"], "hello yourself", "{session}");
        self.assert_left(&messages[3..]);
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

fn ends_and_goes_on(at: At) {
    let (server, place) = (Server::start([at.reply(), Reply::text("the answer")]), Place::new());
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
    if at == At::Command {
        let (stopped, before) = before.split_last().unwrap();
        assert_eq!(*stopped, json!({"role": "assistant", "content": "(stopped)"}), "{run}");
        assert_eq!(last["content"], "second", "{run}");
        at.assert_left(&before[1..]);
    } else {
        assert_eq!(last["content"], "first\n\nsecond", "{run}");
        assert_eq!(before.len(), 1, "{run}");
    }
    assert_nothing_runs(&place);
}

#[test]
fn ctrl_c_ends_a_turn_wherever_it_is_and_the_next_one_works() {
    each(&ALL, |at| ends_and_goes_on(*at));
}

fn exits_with_130(at: At) {
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
}

#[test]
fn ctrl_c_in_file_mode_exits_with_130() {
    each(&ALL, |at| exits_with_130(*at));
}

#[test]
fn signals_end_mb_while_it_reads_a_prompt_from_standard_input() {
    for (signal, status) in [(SIGINT, 130), (SIGTERM, 143), (SIGHUP, 129), (SIGQUIT, 131)] {
        let (server, place) = (Server::start([]), Place::new());
        let mut live = place.mb(&server, &["-"]).limit(20).start(); // its input stays open
        live.send("half a prompt");
        live.wait_until_read();
        live.signal(signal);
        let run = live.finish();
        assert_eq!((run.status, run.stdout.as_str()), (status, ""), "{run}");
    }
}

fn closes_the_connection(at: At) {
    let (server, place) = (Server::start([at.reply()]), Place::new());
    let mut live = place.start(&server, &[]);
    live.send("first\n");
    at.wait(&place, &server, &mut live);
    live.signal(SIGINT);
    server.wait_for_end(server.requests()[0].connection);
    live.send("!echo al''ive\n"); // mb itself is still there
    live.wait_for_stdout("alive");
}

#[test]
fn ctrl_c_closes_the_connection_at_once() {
    each(&REPLY, |at| closes_the_connection(*at));
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
    let (server, place) = (Server::start([]), Place::new());
    place.write("p.txt", "first");
    let mut live = place.mb(&server, &["p.txt", &endpoint]).start();
    live.wait_for_stdout("...requesting...");
    live.signal(SIGINT);
    let run = live.finish();
    assert_eq!(run.status, 130, "{run}");
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

/// Sends two, as a wrapper does that forwards what the terminal has sent already: the second comes
/// as soon as the first is delivered, since before that the kernel would take them for one.
fn interrupt_twice(live: &Live) {
    live.signal(SIGINT);
    while pending(live.pid()) {
        std::hint::spin_loop();
    }
    live.signal(SIGINT);
}

/// Waits until mb has nothing to do any more: all its threads sleep, and none has woken meanwhile.
fn wait_until_asleep(pid: i32) {
    let asleep = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let stat = |path| fs::read_to_string(path).unwrap_or_default();
        let stats: Vec<String> = tasks.map(|task| stat(task.path().join("stat"))).collect();
        stats.iter().all(|stat| stat.rsplit(") ").next().unwrap().starts_with('S'))
    };
    wait_until("mb sleeps", || {
        let before = activity(pid);
        !alive(pid) || !pending(pid) && asleep() && activity(pid) == before
    });
}

fn takes_two_for_one(at: At) {
    let (server, place) = (Server::start([at.reply(), Reply::text("the answer")]), Place::new());
    let mut live = place.start(&server, &[]);
    live.send("first\n");
    at.wait(&place, &server, &mut live);
    interrupt_twice(&live);
    live.wait_for_stderr("[interrupted]");
    wait_until_asleep(live.pid()); // so that the second is over, too
    live.send("second\n");
    live.wait_for_stdout("the answer");
    live.close_stdin();
    let run = live.finish();
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(run.stderr.matches("[interrupted]").count(), 1, "{run}");
    assert_nothing_runs(&place);
}

#[test]
fn two_interrupts_at_once_are_as_good_as_one() {
    each(&ALL, |at| takes_two_for_one(*at));
}

#[test]
fn two_interrupts_at_once_leave_no_process_in_file_mode_either() {
    each(&[0; 5], |_| {
        let (server, place) = (Server::start([At::Command.reply()]), Place::new());
        place.write("p.txt", "hello");
        let mut live = place.start(&server, &["p.txt"]);
        At::Command.wait(&place, &server, &mut live);
        interrupt_twice(&live);
        let run = live.finish();
        assert_eq!(run.status, 130, "{run}");
        assert!(run.stderr.contains("[interrupted]"), "{run}");
        assert_nothing_runs(&place);
    });
}

#[test]
fn a_second_ctrl_c_before_the_first_took_effect_changes_nothing() {
    let (gate, text) = (Gate::default(), "x".repeat(3_000_000)); // stuck in the middle of printing
    let (server, place) =
        (Server::start([Reply::text(&text), Reply::text("the answer")]), Place::new());
    let mut live = place.mb(&server, &[]).stdout_held(&gate).start();
    live.send("first\n");
    live.wait_until_stuck();
    for _ in 0..3 {
        live.signal(SIGINT);
        live.wait_for_delivery();
    }
    gate.open();
    live.wait_for_stderr("[interrupted]");
    live.send("second\n");
    live.wait_for_stdout("the answer");
    live.close_stdin();
    let run = live.finish();
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(run.stderr.matches("[interrupted]").count(), 1, "{run}");
    assert_eq!(server.requests()[1].messages()[1]["content"], "first\n\nsecond", "{run}");
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

// ---- SIGTERM, SIGHUP and SIGQUIT

const ENDS: [(i32, i32); 3] = [(SIGTERM, 143), (SIGHUP, 129), (SIGQUIT, 131)];

fn with_ends(all: &[At]) -> Vec<(At, (i32, i32))> {
    all.iter().flat_map(|at| ENDS.map(|end| (*at, end))).collect()
}

fn exits_with(at: At, signal: i32, status: i32) {
    let (server, place) = (Server::start([at.reply()]), Place::new());
    place.write("p.txt", "first");
    let mut live = place.start(&server, &["p.txt"]);
    at.wait(&place, &server, &mut live);
    live.signal(signal);
    let run = live.finish();
    assert_eq!(run.status, status, "{run}");
    assert!(!place.sessions().join(place.project_id() + ".json").exists(), "{run}");
    assert_nothing_runs(&place);
}

#[test]
fn signals_that_end_mb_exit_with_their_number_in_file_mode() {
    each(&with_ends(&ALL), |(at, (signal, status))| exits_with(*at, *signal, *status));
}

#[test]
fn a_second_one_ends_mb_at_once_where_nobody_reads_what_it_prints() {
    each(&ENDS, |(signal, status)| {
        for args in [&[][..], &["p.txt"]] {
            let (gate, text) = (Gate::default(), "x".repeat(3_000_000));
            let (server, place) = (Server::start([Reply::text(&text)]), Place::new());
            place.write("p.txt", "first");
            let mut live = place.mb(&server, args).stdout_held(&gate).start();
            live.send("first\n");
            live.wait_until_stuck();
            let pid = live.pid();
            for _ in 0..2 {
                live.signal(*signal);
                wait_until_asleep(pid); // or else two threads take one each, as the first
            }
            wait_until("mb ends though its output is stuck", || !alive(pid));
            gate.open();
            let run = live.finish();
            assert_eq!(run.status, *status, "status {}", run.status);
        }
    });
}

#[test]
fn a_signal_tells_its_number_where_nothing_can_be_saved() {
    for home in ["", "/proc"] {
        let (server, place) = (Server::start([Reply::text("one")]), Place::new());
        let mut live = place.mb(&server, &[]).env("HOME", home).start();
        live.send("first\n");
        live.wait_for_stdout("[tokens: ");
        live.send("!echo al''ive\n");
        live.wait_for_stdout("alive");
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

// ---- What needs more than the core

mod needs_streaming {
    use super::*;

    #[test]
    fn ctrl_c_ends_a_turn_in_the_middle_of_a_text_and_the_next_one_works() {
        each(&STREAMED, |at| ends_and_goes_on(*at));
        each(&STREAMED, |at| takes_two_for_one(*at));
    }

    #[test]
    fn ctrl_c_in_the_middle_of_a_text_exits_with_130_in_file_mode() {
        each(&STREAMED, |at| exits_with_130(*at));
    }

    #[test]
    fn ctrl_c_in_the_middle_of_a_text_closes_the_connection_at_once() {
        each(&STREAMED, |at| closes_the_connection(*at));
    }

    #[test]
    fn signals_that_end_mb_exit_with_their_number_in_the_middle_of_a_text() {
        each(&with_ends(&STREAMED), |(at, (signal, status))| exits_with(*at, *signal, *status));
    }
}

mod needs_retries {
    use super::*;

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
}

mod needs_cfg {
    use super::*;

    #[test]
    fn after_a_connection_attempt_that_hung_the_conversation_goes_on() {
        let (listener, _queue) = full_socket();
        let endpoint = format!("endpoint=http://{}/v1", listener.local_addr().unwrap());
        let (server, place) = (Server::start([Reply::text("the answer")]), Place::new());
        let mut live = place.mb(&server, &[&endpoint]).start();
        live.send("first\n");
        live.wait_for_stdout("...requesting...");
        live.signal(SIGINT);
        live.wait_for_stderr("[interrupted]");
        live.send(format!("/cfg endpoint {}\nsecond\n", server.url()));
        live.wait_for_stdout("the answer");
        assert_eq!(server.requests()[0].messages()[1]["content"], "first\n\nsecond");
    }
}

mod needs_terminal {
    use super::*;

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
        live.send("!echo al''ive\n");
        live.wait_for_stdout("alive");
        quiet_second("on a pipe", live.pid());
    }

    #[test]
    fn signals_that_end_mb_end_it_with_a_half_typed_line() {
        each(&ENDS, |(signal, status)| {
            let (server, place) = (Server::start([]), Place::new());
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            terminal.type_text("half");
            terminal.wait_for("half"); // its echo
            terminal.live.signal(*signal);
            let run = terminal.finish();
            assert_eq!(run.status, *status, "{run}");
        });
    }

    mod needs_confirm {
        use super::*;

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
    }

    mod needs_compact {
        use super::*;

        #[test]
        fn signals_that_end_mb_end_it_at_the_question_whether_to_compact() {
            each(&ENDS, |(signal, status)| {
                let (server, place) = (Server::start([Reply::text("one")]), Place::new());
                place.config(&server, "context_window=10");
                let mut terminal = place.terminal(&server, &[]);
                terminal.wait_for("> ");
                terminal.type_text("first\r");
                terminal.wait_for("[Y/n]: ");
                terminal.live.signal(*signal);
                let run = terminal.finish();
                assert_eq!(run.status, *status, "{run}");
            });
        }
    }
}

mod needs_sessions {
    use super::*;

    /// A session to load.
    fn save_old(place: &Place) {
        fs::create_dir_all(place.sessions()).unwrap();
        let (prompt, answer) = (json!({"role": "user", "content": "loaded"}), "an answer");
        let old = json!([prompt, {"role": "assistant", "content": answer}]).to_string();
        fs::write(place.sessions().join("old.json"), old).unwrap();
    }

    fn stores_nothing_else(at: At) {
        let (server, place) = (Server::start([hello(), at.reply()]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("hello\nfirst\n");
        at.wait_in(2, &place, &server, &mut live);
        live.signal(SIGINT);
        live.wait_for_stderr("[interrupted]");
        live.send("/quit\n");
        let run = live.finish();
        assert_eq!(run.status, 0, "{run}");
        at.assert_saved(&place);
    }

    fn ends_and_saves(at: At, signal: i32, status: i32) {
        let (server, place) = (Server::start([hello(), at.reply()]), Place::new());
        let mut live = place.start(&server, &[]);
        live.send("hello\nfirst\n");
        at.wait_in(2, &place, &server, &mut live);
        live.signal(signal);
        let run = live.finish();
        assert_eq!(run.status, status, "{run}");
        assert_eq!(server.requests().len(), 2, "{run}");
        at.assert_saved(&place);
        assert_nothing_runs(&place);
    }

    #[test]
    fn nothing_of_an_interrupted_turn_is_stored_but_the_prompt_and_finished_iterations() {
        each(&ALL, |at| stores_nothing_else(*at));
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
    fn signals_that_end_mb_end_the_turn_save_the_session_and_tell_their_number() {
        each(&with_ends(&ALL), |(at, (signal, status))| ends_and_saves(*at, *signal, *status));
    }

    #[test]
    fn signals_that_end_mb_end_a_shell_line_and_its_children() {
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
    fn a_turn_that_was_interrupted_twice_at_once_is_saved() {
        each(&[At::FirstByte, At::Command], |at| {
            let (server, place) = (Server::start([hello(), at.reply()]), Place::new());
            let mut live = place.start(&server, &[]);
            live.send("hello\nfirst\n");
            at.wait_in(2, &place, &server, &mut live);
            interrupt_twice(&live);
            live.wait_for_stderr("[interrupted]");
            live.close_stdin();
            let run = live.finish();
            assert_eq!(run.status, 0, "{run}");
            at.assert_saved(&place);
            assert_nothing_runs(&place);
        });
    }

    #[test]
    fn signals_that_end_mb_save_the_session_at_the_prompt_too() {
        each(&ENDS, |(signal, status)| {
            let (server, place) = (Server::start([]), Place::new());
            save_old(&place);
            let mut live = place.start(&server, &[]);
            live.send("/load old\n!echo al''ive\n");
            live.wait_for_stdout("alive");
            live.signal(*signal);
            let run = live.finish();
            assert_eq!(run.status, *status, "{run}");
            assert_eq!(place.session()["messages"][1]["content"], "loaded", "{run}");
        });
    }

    /// Ctrl+C in a command that waits for the second request, or for the models.
    fn ends_a_command(command: &str) {
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
        live.send("!echo al''ive\n");
        live.wait_for_stdout("alive");
        live.close_stdin();
        let run = live.finish();
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(place.session()["messages"].as_array().unwrap().len(), 3, "{run}");
    }

    mod needs_streaming {
        use super::*;

        #[test]
        fn nothing_of_a_half_text_is_stored() {
            each(&STREAMED, |at| stores_nothing_else(*at));
            each(&with_ends(&STREAMED), |(at, (signal, status))| {
                ends_and_saves(*at, *signal, *status)
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
    }

    mod needs_retries {
        use super::*;

        #[test]
        fn signals_that_end_mb_end_the_wait_for_a_retry() {
            each(&ENDS, |(signal, status)| {
                let busy = (0..5).map(|_| Reply::status(503, "busy"));
                let (server, place) =
                    (Server::start([hello()].into_iter().chain(busy)), Place::new());
                let mut live = place.start(&server, &[]);
                live.send("hello\nfirst\n");
                live.wait_for_stderr("[retry 5/9 in 5s: ");
                let start = Instant::now();
                live.signal(*signal);
                let run = live.finish();
                assert!(start.elapsed() < Duration::from_secs(4), "{run}");
                assert_eq!(run.status, *status, "{run}");
                assert_eq!(place.session()["messages"][3]["content"], "first", "{run}");
            });
        }
    }

    mod needs_compact {
        use super::*;

        #[test]
        fn a_signal_during_compact_leaves_the_conversation() {
            let (server, place) =
                (Server::start([Reply::text("one"), Reply::hang()]), Place::new());
            let mut live = place.start(&server, &[]);
            live.send("first\n/compact\n");
            server.wait_for_requests(2);
            live.signal(SIGTERM);
            let run = live.finish();
            assert_eq!(run.status, 143, "{run}");
            assert_eq!(place.session()["messages"].as_array().unwrap().len(), 3, "{run}");
        }

        #[test]
        fn ctrl_c_ends_the_wait_for_a_summary_and_changes_nothing() {
            ends_a_command("/compact");
        }
    }

    mod needs_models {
        use super::*;

        #[test]
        fn ctrl_c_ends_the_wait_for_the_models_and_changes_nothing() {
            ends_a_command("/models");
        }
    }

    mod needs_terminal {
        use super::*;

        fn is_saved_though_the_terminal_closes(at: At) {
            let (server, place) = (Server::start([hello(), at.reply()]), Place::new());
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            terminal.type_text("hello\r");
            terminal.wait_for("hello yourself");
            terminal.wait_for("\n> ");
            terminal.type_text("first\r");
            at.wait_in(2, &place, &server, &mut terminal.live);
            terminal.hang_up();
            let run = terminal.finish();
            assert_eq!(run.status, 129, "{at:?}{run}");
            at.assert_saved(&place);
            assert_nothing_runs(&place);
        }

        #[test]
        fn a_closed_terminal_ends_a_turn_and_the_session_is_saved() {
            each(&ALL, |at| is_saved_though_the_terminal_closes(*at));
        }

        #[test]
        fn a_terminal_closed_at_the_prompt_saves_and_ends() {
            let (server, place) = (Server::start([]), Place::new());
            save_old(&place);
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            terminal.type_text("/load old\r");
            terminal.wait_for("\n> ");
            terminal.hang_up();
            let run = terminal.finish();
            assert_eq!(run.status, 129, "{run}");
            assert_eq!(place.session()["messages"][1]["content"], "loaded", "{run}");
        }

        #[test]
        fn ctrl_backslash_ends_mb_and_what_it_runs() {
            each(&[At::FirstByte, At::Text, At::Command], |at| {
                let (server, place) = (Server::start([hello(), at.reply()]), Place::new());
                let mut terminal = place.terminal(&server, &[]);
                terminal.wait_for("> ");
                terminal.type_text("hello\r");
                terminal.wait_for("hello yourself");
                terminal.wait_for("\n> ");
                terminal.type_text("first\r");
                at.wait_in(2, &place, &server, &mut terminal.live);
                terminal.key(0x1c);
                let run = terminal.finish();
                assert_eq!(run.status, 131, "{run}");
                at.assert_saved(&place);
                assert_nothing_runs(&place);
            });
        }
    }
}
