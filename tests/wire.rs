//! One reply as it comes over the wire, and what must come of it (§3 and §5 of the contract).
//!
//! The cases are data, for ports too: `wire/NAME.http` is the reply, byte for byte, and
//! `wire/NAME.json` tells the rest; `wire/README.md` explains it. Each case is replayed in other
//! shapes: cut into small segments, in another framing, with CRLF, with what servers put between
//! events. What a case needs beyond the core of a program is in its `needs`, and it is replayed by
//! the test in the module of that name. `MB_CASE=NAME` replays that case alone.

#[macro_use]
mod common;

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use common::*;
use serde_json::{Value, json};

const REQUESTING: &str = "...requesting...\n";
const NOISE: &str = ": ping\n\ndata: null\n";
const MOST_SEGMENTS: usize = 100; // of one reply, so that all of them take seconds, not minutes

struct Case {
    name: String,
    http: Vec<u8>,
    want: Value,
}

/// A way to send a case: its name, the bytes, and how many go at a time.
struct Shape(&'static str, Vec<u8>, usize);

#[test]
fn every_reply_is_read_shown_run_and_stored_as_its_case_says_in_every_shape() {
    replay(&[]);
}

#[test]
fn each_case_has_a_test_that_replays_it() {
    let known: [&[&str]; 5] =
        [&[], &["retries"], &["retries", "streaming"], &["streaming"], &["reasoning"]];
    for case in cases() {
        let needs = needs(&case);
        assert!(known.iter().any(|list| needs == *list), "{}: {needs:?}", case.name);
    }
}

mod needs_reasoning {
    #[test]
    fn every_reply_with_reasoning_is_shown_and_stored_as_its_case_says() {
        super::replay(&["reasoning"]);
    }
}

mod needs_retries {
    #[test]
    fn every_reply_that_fails_for_now_is_asked_for_again_as_its_case_says() {
        super::replay(&["retries"]);
    }

    mod needs_streaming {
        #[test]
        fn what_has_come_of_a_reply_that_fails_for_now_is_shown_as_its_case_says() {
            super::super::replay(&["retries", "streaming"]);
        }
    }
}

mod needs_streaming {
    #[test]
    fn what_has_come_of_a_reply_that_fails_is_shown_as_its_case_says() {
        super::replay(&["streaming"]);
    }
}

mod needs_token_line {
    use super::*;

    #[test]
    fn every_token_line_is_as_its_case_says() {
        let has_line = |case: &Case| case.want["message"].is_object();
        check_all(wanted_cases().into_iter().filter(has_line).collect(), |case, current| {
            let (server, place) = (Server::start([]), Place::new());
            let shape = shapes(case).remove(0);
            current.replace(case.name.clone());
            let (run, _) = run(case, &shape, &server, &place);
            match case.want["tokens"].as_str() {
                Some(line) => assert!(run.stdout.contains(&format!("\n{line}")), "{line}{run}"),
                None => assert!(!run.stdout.contains("[tokens: "), "no token line{run}"),
            }
        });
    }
}

/// Replays the cases that need exactly this, in every shape.
fn replay(list: &[&str]) {
    let cases = wanted_cases().into_iter().filter(|case| needs(case) == list).collect();
    check_all(cases, |case, current| {
        let server = Server::start([]);
        for shape in shapes(case) {
            let place = Place::new(); // a new one: nothing is saved of an earlier run
            current.replace(format!("{}, {}", case.name, shape.0));
            check(case, &shape, &server, &place, &current.borrow());
        }
    });
}

/// Tests cases beside each other. Says how many passed, and which failed, and in which shape.
fn check_all(cases: Vec<Case>, test: impl Fn(&Case, &RefCell<String>) + Sync) {
    let count = cases.len();
    let (cases, failed) = (Mutex::new(cases), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some(case) = cases.lock().unwrap().pop() else { break };
            let current = RefCell::new(String::new());
            if catch_unwind(AssertUnwindSafe(|| test(&case, &current))).is_err() {
                failed.lock().unwrap().push(current.into_inner());
            }
        }
    };
    thread::scope(|scope| (0..24).for_each(|_| drop(scope.spawn(work))));
    let mut failed = failed.into_inner().unwrap();
    failed.sort();
    let passed = format!("{} of {count} cases passed", count - failed.len());
    assert!(failed.is_empty(), "{passed}, {} failed:\n{}", failed.len(), failed.join("\n"));
    if count > 0 {
        let _ = writeln!(io::stderr(), "{passed}"); // even where a test's output is hidden
    }
}

/// All cases, or the one that `MB_CASE` names.
fn wanted_cases() -> Vec<Case> {
    let Ok(name) = std::env::var("MB_CASE") else { return cases() };
    let wanted: Vec<Case> = cases().into_iter().filter(|case| case.name == name).collect();
    assert!(wanted.len() == 1, "MB_CASE={name}, but there is no tests/wire/{name}.http");
    wanted
}

fn needs(case: &Case) -> Vec<&str> {
    case.want["needs"].as_array().into_iter().flatten().map(text).collect()
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let replies = files.filter(|file| file.extension().is_some_and(|end| end == "http"));
    let case = |file: std::path::PathBuf| {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(file.with_extension("json"));
        let want = serde_json::from_str(&text.unwrap_or_else(|error| panic!("{name}: {error}")));
        let want = want.unwrap_or_else(|error| panic!("{name}: {error}"));
        Case { name, http: fs::read(&file).unwrap(), want }
    };
    replies.map(case).collect()
}

// ---- The shapes of a reply

fn shapes(case: &Case) -> Vec<Shape> {
    let http = &case.http;
    let segment = 1 + http.len() / MOST_SEGMENTS;
    let mut shapes = vec![Shape("as it is, in small segments", http.clone(), segment)];
    if case.want["fixed"] == true {
        shapes.push(Shape("as it is, at once", http.clone(), usize::MAX));
        return shapes;
    }
    let (head, body) = parts(http);
    let framed =
        |framing: &str, body: &[u8]| [format!("{head}{framing}\r\n\r\n").as_bytes(), body].concat();
    let mut chunks = Vec::new();
    for chunk in body.chunks(1) {
        chunks.extend([format!("{:X}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
    }
    chunks.extend(b"0\r\n\r\n");
    shapes.push(Shape("in chunks of 1", framed("Transfer-Encoding: chunked", &chunks), usize::MAX));
    let text = String::from_utf8(body).unwrap();
    let noisy = map_events(&text, |event| format!("{NOISE}{event}"));
    let noisy = noisy.replace("\r\n", "\n").replace('\n', "\r\n");
    let noisy = framed(&format!("Content-Length: {}", noisy.len()), noisy.as_bytes());
    let segment = 1 + noisy.len() / MOST_SEGMENTS;
    shapes.push(Shape("with CRLF, noise and a length, in segments", noisy, segment));
    let dense = map_events(&text, |event| event.replacen("data: ", "data:", 1));
    let dense = framed("Connection: close", dense.as_bytes());
    shapes.push(Shape("closed and without spaces, at once", dense, usize::MAX));
    shapes
}

/// A reply's status line and headers without its framing, and its body without chunks.
fn parts(http: &[u8]) -> (String, Vec<u8>) {
    let at = http.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(http[..at].to_vec()).unwrap();
    let framing = |line: &&str| {
        let names = ["transfer-encoding:", "content-length:", "connection:", "keep-alive:"];
        names.iter().any(|name| line.to_lowercase().starts_with(name))
    };
    let kept: String =
        head.lines().filter(|line| !framing(line)).map(|l| format!("{l}\r\n")).collect();
    let mut rest = &http[at + 4..];
    if !has(&head, "transfer-encoding:") {
        return (kept, rest.to_vec());
    }
    let mut body = Vec::new();
    loop {
        let at = rest.windows(2).position(|bytes| bytes == b"\r\n").expect("a chunk's size");
        let size = usize::from_str_radix(str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        if size == 0 {
            return (kept, body);
        }
        body.extend(&rest[at + 2..at + 2 + size]);
        rest = &rest[at + 2 + size + 2..];
    }
}

fn has(head: &str, name: &str) -> bool {
    head.lines().any(|line| line.to_lowercase().starts_with(name))
}

fn map_events(body: &str, change: impl Fn(&str) -> String) -> String {
    let line = |line: &str| if line.starts_with("data:") { change(line) } else { line.into() };
    body.split_inclusive('\n').map(line).collect()
}

// ---- One run

/// Runs a case; returns the requests, too.
fn run(case: &Case, shape: &Shape, server: &Server, place: &Place) -> (Run, Vec<Request>) {
    let want = &case.want;
    let Shape(_, bytes, segment) = shape;
    let before = server.requests().len();
    server.push(reply(bytes, want["close"] == true).split_every(*segment));
    (1..want["requests"].as_u64().unwrap()).for_each(|_| server.push(done()));
    place.config(server, &list(want, "config").join("\n"));
    // A text alone ends the turn: then a second one shows what was stored of it.
    let two_turns = want["message"].is_object() && want["calls"].is_null();
    let (args, prompts): (&[&str], _) =
        if two_turns { (&[], "hello\nagain\n") } else { (&["-"], "hello") };
    let run = place.run(server, args, prompts);
    (run, server.requests().split_off(before))
}

fn check(case: &Case, shape: &Shape, server: &Server, place: &Place, name: &str) {
    let want = &case.want;
    let calls = want["calls"].as_array().cloned().unwrap_or_default();
    let files = want["files"].as_object().cloned().unwrap_or_default();
    let (run, requests) = run(case, shape, server, place);
    assert_eq!(run.status, want["status"].as_i64().unwrap() as i32, "{name}{run}");
    let count = want["requests"].as_u64().unwrap() as usize;
    assert_eq!(requests.len(), count, "{name}: requests{run}");
    assert_eq!(shown(&run), expected(want), "{name}: what is shown of the reply{run}");
    let parts = list(want, "stderr");
    for part in &parts {
        assert!(run.stderr.contains(part), "{name}: no {part:?} on stderr{run}");
    }
    assert_eq!(run.stderr.is_empty(), parts.is_empty(), "{name}: stderr{run}");
    for (file, content) in &files {
        assert_eq!(place.read(file), text(content), "{name}: {file}{run}");
    }
    check_trace(&run, &calls, name);
    for request in &requests {
        well_formed(request.messages()).unwrap_or_else(|rule| panic!("{name}: {rule}{run}"));
    }
    let last = requests.last().unwrap();
    if !want["message"].is_object() {
        assert_eq!(last.roles(), ["system", "user"], "{name}: something is stored{run}");
        return;
    }
    let stored = &last.messages()[2];
    assert!(fits(stored, &want["message"]), "{name}: this is stored\n{stored}{run}");
    if want["message"]["content"] == ANY {
        assert_eq!(text_of(stored), want["text"], "{name}: this is stored\n{stored}{run}");
    }
    for (message, call) in last.messages()[3..].iter().zip(&calls) {
        let got = text(&message["content"]);
        let exact = call["result"].as_str().is_none_or(|result| got == result);
        let part = call["result_has"].as_str().is_none_or(|part| got.contains(part));
        assert!(exact && part, "{name}: the model gets {got:?} for {call}{run}");
    }
}

/// These bytes, and the connection's end where the framing needs it or the case has it.
fn reply(bytes: &[u8], close: bool) -> Reply {
    let head = String::from_utf8_lossy(bytes);
    let head = head.split("\r\n\r\n").next().unwrap();
    let framed = has(head, "content-length:") || has(head, "transfer-encoding:");
    let reply = Reply::raw(bytes);
    if framed && !close { reply } else { reply.then_close() }
}

/// Ends the turn, without usage: so the token line tells of the case's reply alone.
fn done() -> Reply {
    Reply::sse(&[&delta(json!({"content": "done"})), &finish("stop"), "[DONE]"])
}

fn list<'a>(want: &'a Value, key: &str) -> Vec<&'a str> {
    want[key].as_array().into_iter().flatten().map(text).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// What is on stdout between the first request and what follows its reply.
fn shown(run: &Run) -> String {
    let text = run.stdout.split_once(REQUESTING).expect("a request").1;
    let ends = [REQUESTING, "[tool call: ", "[tokens: "];
    let end = ends.iter().filter_map(|end| text.find(end)).min();
    text[..end.unwrap_or(text.len())].to_string()
}

fn expected(want: &Value) -> String {
    let line = |key: &str| want[key].as_str().map(|text| format!("{text}\n")).unwrap_or_default();
    let reasoning = match line("reasoning") {
        none if none.is_empty() => none,
        lines => format!("--- reasoning start ---\n{lines}--- reasoning end ---\n"),
    };
    reasoning + &line("text")
}

/// The calls that were traced are those of the case; broken arguments may be shown anyhow.
fn check_trace(run: &Run, calls: &[Value], name: &str) {
    let traced: Vec<&str> = run.stdout.split("[tool call: ").skip(1).collect();
    assert_eq!(traced.len(), calls.len(), "{name}: calls{run}");
    for (trace, call) in traced.iter().zip(calls) {
        let (tool, rest) = trace.split_once('(').unwrap();
        let (arguments, _) = rest.split_once(&format!(")]\n[tool result: {tool}]\n")).unwrap();
        assert_eq!(tool, call["name"], "{name}{run}");
        if let Some(wanted) = call.get("arguments") {
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            assert_eq!(&arguments, wanted, "{name}{run}");
        }
    }
}
