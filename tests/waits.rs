//! How mb waits. iSH has no `FUTEX_WAIT_BITSET`, with which Rust's locks and channels wait: there
//! each such wait returns at once and is begun again, at full speed. So whatever takes time has to
//! be waited for in `poll` or `read`, and strace shows on any Linux whether it is.

#[macro_use]
mod common;

use std::collections::{HashMap, HashSet};
use std::time::Duration;
use std::{fs, thread};

use common::*;
use serde_json::json;

/// What takes two seconds: its name, the server's replies, what is sent to mb, and the text on its
/// standard output that tells that the time is over; without one, it is waited at the prompt.
type Case = (&'static str, fn() -> Vec<Reply>, &'static str, Option<&'static str>);

fn shell(command: &str) -> Reply {
    Reply::calls(&[("c1", "shell_exec", &json!({"command": command}).to_string())])
}

/// Fails if mb spends a second or more of this case in a lock or a channel. Nothing else but these
/// two seconds can take so long, however slow the machine is: what is short is waited for by chance.
fn never_waits_in_a_lock((name, replies, input, end): &Case) {
    let (server, place) = (Server::start(replies()), Place::new());
    let log = place.home().join("trace");
    let file = log.to_str().unwrap();
    let calls = "trace=futex,clone,?clone3";
    let strace = ["strace", "-f", "-T", "-qq", "-o", file, "-e", calls, "-e", "signal=none"];
    let mut live = place.through(&strace, &server, &[]).start();
    live.send(format!("{input}!echo on''ward\n"));
    live.wait_for_stdout(end.unwrap_or("onward"));
    if end.is_none() {
        thread::sleep(Duration::from_secs(2));
    }
    live.send("/quit\n");
    let run = live.finish();
    assert!(run.status == 0, "{run}");
    let log = fs::read_to_string(log).unwrap();
    for (thread, seconds) in lasting_waits(&log) {
        let lasts = seconds >= 1.0;
        assert!(!lasts, "{name}: thread {thread} waited {seconds} s in\n{log}{run}");
    }
}

/// How long each of mb's own threads waited with `FUTEX_WAIT_BITSET`, by strace's log.
fn lasting_waits(log: &str) -> HashMap<&str, f64> {
    let lines = || log.lines().filter_map(|line| line.split_once(' '));
    let first = lines().next().expect("a log").0;
    // A thread's number is the last word of the line on which its `clone` ends.
    let (mut threads, mut begun) = (HashSet::from([first]), HashSet::new());
    for (thread, call) in lines().filter(|(_, call)| call.contains("clone")) {
        if call.contains("CLONE_THREAD") && call.ends_with("<unfinished ...>") {
            begun.insert(thread);
        } else if call.contains("CLONE_THREAD") || begun.remove(thread) {
            let number = call.rsplit_once(" = ").expect("an end").1.split(' ').next();
            threads.extend(number.filter(|_| threads.contains(thread)));
        }
    }
    let (mut waits, mut waiting) = (HashMap::new(), HashSet::new());
    for (thread, call) in lines().filter(|(thread, _)| threads.contains(thread)) {
        let wait = call.contains("FUTEX_WAIT_BITSET");
        if wait && call.ends_with("<unfinished ...>") {
            waiting.insert(thread);
        } else if wait || call.contains("futex resumed") && waiting.remove(thread) {
            let seconds =
                call.rsplit_once('<').and_then(|(_, it)| it.strip_suffix('>')?.parse().ok());
            *waits.entry(thread).or_insert(0.0) += seconds.unwrap_or(0.0);
        }
    }
    waits
}

fn each(cases: &[Case]) {
    if !cannot(&["strace", "-f", "-o", "/dev/null", "true"]) {
        thread::scope(|scope| {
            cases.iter().for_each(|case| drop(scope.spawn(|| never_waits_in_a_lock(case))))
        });
    }
}

#[test]
fn the_end_of_a_command_is_not_waited_for_in_a_lock() {
    // What runs in the background ends soon: strace, which follows it, ends no sooner.
    each(&[
        ("a command of the user's", || vec![], "!exec sleep 2 >log 2>&1\n", Some("onward")),
        (
            "a command of the model's",
            || vec![shell("exec sleep 2 >log 2>&1"), Reply::text("done")],
            "do it\n",
            Some("onward"),
        ),
        (
            "one that keeps the pipe",
            || vec![shell("sleep 2"), Reply::text("done")],
            "do it\n",
            Some("onward"),
        ),
        (
            "one in the background",
            || vec![shell("sleep 3 & echo started"), Reply::text("done")],
            "do it\n",
            None,
        ),
        (
            "one in the background that keeps printing",
            || {
                vec![
                    shell("(for i in 1 2 3 4 5 6; do echo more; sleep 0.5; done) &"),
                    Reply::text("done"),
                ]
            },
            "do it\n",
            None,
        ),
    ]);
}

#[test]
fn a_reply_a_retry_and_a_prompt_are_not_waited_for_in_a_lock() {
    each(&[
        ("the prompt", || vec![], "", None),
        ("the prompt after a turn", || vec![Reply::text("done")], "hello\n", None),
        (
            "a reply's first byte",
            || {
                let gate = Gate::default();
                let reply = Reply::text("done").held(&gate);
                thread::spawn(move || {
                    thread::sleep(Duration::from_secs(2));
                    gate.open();
                });
                vec![reply]
            },
            "hello\n",
            Some("onward"),
        ),
        (
            "a slow reply",
            || {
                let half = Reply::sse(&[&delta(json!({"content": "half"}))]);
                vec![half.pause(2000).send(&[&finish("stop"), "[DONE]"])]
            },
            "hello\n",
            Some("onward"),
        ),
        (
            "the delay before a retry",
            || vec![Reply::status(503, "busy"), Reply::status(503, "busy"), Reply::text("done")],
            "hello\n",
            Some("onward"),
        ),
    ]);
}
