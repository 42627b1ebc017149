//! What mb costs, beside curl and sh at the same work on the same scripted server. A release build
//! is worth measuring, and `MB_BIN` names another one than cargo's:
//! `cargo test --release --test bench -- --ignored --nocapture`

#[macro_use]
mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use common::*;
use serde_json::{Value, json};

const RUNS: usize = 7;
const CHUNKS: usize = 20_000;
const END: &str = "the end"; // in the last line that is printed before the memory is looked at

/// What a process took, in milliseconds and megabytes. What was not measured is NaN.
struct Cost {
    cpu: f64,     // user and system, to its end, its own children's included
    arrival: f64, // from its start until its first request had come
    wall: f64,    // from its start until it printed END
    peak: f64,    // of its resident memory until then
}

const NOTHING: Cost = Cost { cpu: f64::NAN, arrival: f64::NAN, wall: f64::NAN, peak: f64::NAN };

/// Starts a process, and lets go at END what holds it there: the gate, and an open standard input.
/// Nothing here makes `spawn` fork: taking down a copy of this process would count as its cost.
#[allow(clippy::zombie_processes)] // wait4 waits for it
fn run(mut command: Command, input: &str, gate: &Gate) -> Cost {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (pid, mut stdin) = (child.id() as i32, child.stdin.take().unwrap());
    stdin.write_all(input.as_bytes()).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(END)), "{command:?}: no end came");
    let wall = start.elapsed().as_secs_f64() * 1e3;
    // wait4 would say no less than what this process has: it counts what was there before exec.
    let state = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = state.split_once("VmHWM:").and_then(|(_, rest)| rest.split_whitespace().next());
    let peak = peak.map_or(f64::NAN, |kilobytes| kilobytes.parse::<f64>().unwrap() * 1024.0 / 1e6);
    gate.open();
    drop(stdin);
    lines.for_each(drop);
    let (mut status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
    assert_eq!(unsafe { libc::wait4(pid, &mut status, 0, &mut usage) }, pid);
    assert_eq!(status, 0, "{command:?}");
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    Cost { cpu: ms(usage.ru_utime) + ms(usage.ru_stime), wall, peak, ..NOTHING }
}

/// Runs what asks a server that follows this script.
fn run_with(script: Script, command: impl FnOnce(&Server) -> (Command, String)) -> (Cost, Request) {
    let gate = Gate::default();
    let server = Server::start(script(&gate));
    let (command, input) = command(&server);
    let start = Instant::now();
    let mut cost = run(command, &input, &gate);
    let request = server.requests().swap_remove(0);
    cost.arrival = (request.at - start).as_secs_f64() * 1e3;
    (cost, request)
}

type Script<'a> = &'a dyn Fn(&Gate) -> Vec<Reply>;

/// Runs mb for one prompt: in FILE mode, or, where there are earlier messages, by `/continue`; then
/// END comes when the turn has been saved. The first request's body is kept for `curl`.
fn mb_turn(place: &Place, earlier: usize, script: Script) -> Cost {
    let (cost, request) = run_with(script, |server| {
        place.config(server, "");
        place.write("task", "hello");
        let mut command = Command::new(mb());
        command.current_dir(place.work()).env("HOME", place.home());
        if earlier == 0 {
            command.arg("task");
            return (command, String::new());
        }
        fs::create_dir_all(place.sessions()).unwrap();
        let file = place.sessions().join(place.project_id() + ".json");
        fs::write(file, json!({"messages": conversation(earlier)}).to_string()).unwrap();
        (command, format!("/continue\nhello\n!echo {END}\n"))
    });
    assert_eq!(request.messages().len(), earlier + 2);
    let body = request.body.to_string();
    let blanks = " ".repeat(request.bytes - body.len()); // which mb sent between the values
    place.write("body", body + &blanks);
    cost
}

/// Runs one curl that sends the kept body as often as the script has replies, on one connection.
fn curl(place: &Place, script: Script) -> Cost {
    static FOUND: LazyLock<bool> =
        LazyLock::new(|| Command::new("curl").arg("-V").output().is_ok());
    if !*FOUND {
        return NOTHING;
    }
    let count = script(&Gate::default()).len();
    let command = |server: &Server| {
        let mut command = Command::new("curl");
        // Without `Expect:` curl waits a second before a long body.
        command.args(["-q", "-sN", "--noproxy", "*", "-H", "Expect:", "-d", "@body"]);
        command.args(["-H", "Content-Type: application/json"]).current_dir(place.work());
        command.args(vec![server.url() + "/chat/completions"; count]);
        (command, String::new())
    };
    run_with(script, command).0
}

/// An answer that is held back just before it is complete, shown but for that.
fn last(gate: &Gate) -> Reply {
    let text = delta(json!({"role": "assistant", "content": format!("{END}\n")}));
    Reply::sse(&[&text]).wait(gate).send(&[&finish("stop"), &usage(10, 0, 5), "[DONE]"])
}

/// A turn of so many replies, each with so many calls of a tool, and the last one.
fn turn(gate: &Gate, replies: usize, calls: usize, tool: &str, command: &str) -> Vec<Reply> {
    let arguments = json!({"command": command}).to_string();
    let reply = Reply::calls(&vec![("call", tool, arguments.as_str()); calls]);
    [vec![reply; replies], vec![last(gate)]].concat()
}

/// The bytes of an event stream up to its last piece of text, and the rest.
fn stream() -> (String, String) {
    let chunk = |data: &str| format!("{:x}\r\ndata: {data}\n\n\r\n", data.len() + 8);
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let words = chunk(&delta(json!({"content": "word "}))).repeat(CHUNKS - 1);
    let end = chunk(&delta(json!({"content": format!("{END}\n")})));
    let rest = [finish("stop"), usage(10, 0, 10), "[DONE]".into()].map(|it| chunk(&it)).concat();
    (head.to_string() + &words + &end, rest + "0\r\n\r\n")
}

/// Messages of an agent's everyday work.
fn conversation(count: usize) -> Vec<Value> {
    let arguments = json!({"command": "grep -n 'fn read' src/*.rs | head -20"}).to_string();
    let output = "src/main.rs:316:fn read_reply(output: Job) -> Result<Reply> {\n".repeat(8);
    let function = json!({"name": "shell_exec", "arguments": arguments});
    let call = json!({"id": "call_7f3a", "type": "function", "function": function});
    let four = [
        json!({"role": "user", "content": "Where is the reply read, and what ends the reading?"}),
        json!({"role": "assistant", "content": "I look for it.", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "call_7f3a", "content": output + "\n\nexit: 0"}),
        json!({"role": "assistant", "content": "In `read_reply`, up to the last event. ".repeat(5)}),
    ];
    four.iter().cycle().take(count).cloned().collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Both by turns, so that what else the machine does meets both.
fn by_turns(mb: impl Fn() -> Cost, reference: impl Fn() -> Cost) -> Vec<[Cost; 2]> {
    (0..RUNS).map(|_| [mb(), reference()]).collect()
}

/// Prints the medians, the ratio's too; returns mb's.
fn row(name: &str, reference: &str, pairs: &[[Cost; 2]], value: impl Fn(&Cost) -> f64) -> f64 {
    let [ours, theirs] = [0, 1].map(|which| median(pairs.iter().map(|it| value(&it[which]))));
    let ratio = median(pairs.iter().map(|[mb, reference]| value(mb) / value(reference)));
    let cell = |value: f64| if value.is_nan() { "-".into() } else { format!("{value:.2}") };
    let (mine, other, ratio) = (cell(ours), cell(theirs), cell(ratio));
    println!("{name:44}{mine:>9}{other:>9}  {reference:14}{ratio:>7}");
    ours
}

#[test]
#[ignore = "a benchmark"]
fn beside_curl_and_sh() {
    let place = Place::new();
    let ask = |earlier, script: Script| {
        by_turns(|| mb_turn(&place, earlier, script), || curl(&place, script))
    };
    println!("\n{}; medians of {RUNS} runs; a - where there is no curl", mb());
    println!("{:44}{:>9}{:>9}  {:14}{:>7}", "", "mb", "other", "which is", "ratio");

    let pairs = ask(0, &|gate| vec![last(gate)]);
    row("start to first request, ms", "curl -d @body", &pairs, |it| it.arrival);

    // mb's start, its requests and its shells, beside the same shells alone. A builtin is the least
    // that a shell can do; a program is what models call. Both print END: the folder has that file.
    place.write(END, "");
    let echo = format!("echo {END}");
    for (requests, command) in [(21, &*echo), (2, &*echo), (21, "ls")] {
        let shell = || {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]).current_dir(place.work());
            run(shell, "", &Gate::default()).cpu
        };
        let shells = || Cost { cpu: (0..20).map(|_| shell()).sum(), ..NOTHING };
        let replies = requests - 1;
        let script = |gate: &Gate| turn(gate, replies, 20 / replies, "shell_exec", command);
        let pairs = by_turns(|| mb_turn(&place, 0, &script), shells);
        let name = format!("20 times {command}, in {requests} requests, ms CPU");
        row(&name, "20 sh -c", &pairs, |it| it.cpu);
    }

    let (words, rest) = stream();
    let pairs = ask(0, &|gate| vec![Reply::raw(&words).wait(gate).send(&[&rest])]);
    row("20,000 chunks: a chunk, us CPU", "curl -N", &pairs, |it| it.cpu * 1e3 / CHUNKS as f64);
    row("20,000 chunks: peak memory, MB", "curl -N", &pairs, |it| it.peak);

    let pairs = ask(2000, &|gate| vec![last(gate)]);
    row("2,000 messages continued, ms CPU", "curl -d @body", &pairs, |it| it.cpu);
    row("2,000 messages continued, ms", "curl -d @body", &pairs, |it| it.wall);
    row("2,000 messages continued: peak memory, MB", "curl -d @body", &pairs, |it| it.peak);

    // What each request costs beside the first. It calls a tool that does not exist: no shell runs.
    let per_request = [1000, 2000, 4000].map(|earlier| {
        let one = |gate: &Gate| vec![last(gate)];
        let eleven = |gate: &Gate| turn(gate, 10, 1, "none", "");
        let more = |many: Cost, one: Cost| Cost { cpu: (many.cpu - one.cpu) / 10.0, ..many };
        let pairs = by_turns(
            || more(mb_turn(&place, earlier, &eleven), mb_turn(&place, earlier, &one)),
            || more(curl(&place, &eleven), curl(&place, &one)),
        );
        row(&format!("{earlier} messages: a request, ms CPU"), "curl", &pairs, |it| it.cpu)
    });
    let [small, middle, large] = per_request;
    println!("a request's growth by doubling: {:.2}, {:.2}", middle / small, large / middle);

    let pairs = ask(0, &|gate| turn(gate, 2, 1, "shell_exec", "echo hello"));
    let peak = row("FILE mode, 2 calls: peak memory, MB", "curl -d @body", &pairs, |it| it.peak);
    assert!(peak <= 5.0 || cfg!(debug_assertions), "{peak} MB in FILE mode");
}
