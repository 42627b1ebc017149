//! Random conversations: whatever the server replies and the user does, in whatever order, each
//! request is well-formed, and what was stored stays as it was (§3 of the contract).
//!
//! Each seed is one run of mb, on pipes or on a terminal. Turns and commands are drawn, the replies
//! to them, and Ctrl+C; beside them a model of the conversation is kept. Each request and each
//! saved session has to equal it. `MB_SEEDS=n` runs the seeds below n, `MB_SEED=k` that one. A
//! failure shows its seed and steps.
//!
//! `random.json` has what is drawn from; `{n}` becomes a number, `<any>` is any text. A call has
//! its `result` and, if it runs, what the file `log` holds then.

#[macro_use]
mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex};
use std::thread;

use common::*;
use serde_json::{Map, Value, json};

const SEEDS: u64 = 12; // where the environment does not say how many
const STEPS: usize = 45; // turns and commands of a seed
const LIMIT: usize = 4; // iterations of a turn
const EMPTY: &str = "Invalid assistant message: content or tool_calls must be set";
static KINDS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("random.json")).unwrap());

mod needs_cfg {
    mod needs_compact {
        mod needs_repairs {
            mod needs_retries {
                mod needs_sessions {
                    mod needs_streaming {
                        mod needs_terminal {
                            #[test]
                            fn a_random_conversation_is_well_formed_and_keeps_what_was_stored() {
                                crate::run();
                            }
                        }
                    }
                }
            }
        }
    }
}

fn run() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect(name));
    let seeds = number("MB_SEED").map(|seed: u64| seed..seed + 1);
    let seeds = Mutex::new(seeds.unwrap_or(0..number("MB_SEEDS").unwrap_or(SEEDS)));
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(seed) = seeds.lock().unwrap().next() else { break };
            let steps = RefCell::new(Vec::new());
            let test = || Talk::start(seed, &steps).run();
            if catch_unwind(AssertUnwindSafe(test)).is_err() {
                eprintln!("--- steps of seed {seed}:\n{}\n---", steps.borrow().join("\n"));
                failed.lock().unwrap().push(seed);
            }
        }
    };
    thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seeds that fail, each to be run with MB_SEED=k: {failed:?}");
}

/// The generator splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

/// mb, on pipes or on a terminal, where standard error is the screen, too.
enum Program {
    Pipes(Live),
    Screen(Terminal),
}

use Program::{Pipes, Screen};

impl Program {
    fn live(&mut self) -> &mut Live {
        match self {
            Pipes(live) => live,
            Screen(terminal) => &mut terminal.live,
        }
    }

    /// Types lines. On a terminal each after a prompt of its own: what arrives together is one.
    fn send(&mut self, lines: &str) {
        for line in lines.split_inclusive('\n') {
            match self {
                Pipes(live) => live.send(line),
                Screen(terminal) => {
                    terminal.wait_for("\n> ");
                    terminal.type_text(line);
                }
            }
        }
    }

    /// Presses Ctrl+C so many times in a row, which is as good as once. All have come before the
    /// next line is typed: a later one would rightly drop it.
    fn interrupt(&mut self, times: usize) {
        (0..times).for_each(|_| self.live().signal(libc::SIGINT));
        let file = format!("/proc/{}/status", self.live().pid());
        wait_until("the signals have come", || {
            let status = fs::read_to_string(&file).unwrap_or_default();
            let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
            let pending = pending.map(|set| u64::from_str_radix(set.trim(), 16).unwrap());
            pending.unwrap_or_default() & (1 << (libc::SIGINT - 1)) == 0
        });
        match self {
            Pipes(live) => live.wait_for_stderr("[interrupted]"),
            Screen(terminal) => terminal.wait_for("[interrupted]"),
        }
    }
}

/// A reply, and what comes of it. Ctrl+C is pressed once an event has happened.
struct Step {
    about: String,
    reply: Reply,
    outcome: Outcome,
    interrupt: Option<Event>,
}

enum Outcome {
    Store(Value, Vec<Value>), // a message, and the results of its calls
    Fail,
    Retry,
    Repair, // the last assistant message is dropped
    LeaveOut(String),
}

use Outcome::{Fail, LeaveOut, Repair, Retry, Store};

enum Event {
    Request,
    Output(String),
    File(String),
}

impl Step {
    fn new(about: impl Into<String>, reply: Reply, outcome: Outcome) -> Step {
        Step { about: about.into(), reply, outcome, interrupt: None }
    }

    fn has_calls(&self) -> bool {
        matches!(&self.outcome, Store(_, results) if !results.is_empty())
    }

    fn is_last(&self) -> bool {
        let over = matches!(&self.outcome, Store(..) | Fail) && !self.has_calls();
        over || self.interrupt.is_some()
    }

    fn apply(&self, messages: &mut Vec<Value>) {
        if let Store(message, results) = &self.outcome {
            messages.push(message.clone());
            for (place, result) in results.iter().enumerate() {
                let id = &message["tool_calls"][place]["id"];
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
            }
        } else if let Repair = self.outcome {
            let last = messages.iter().rposition(|message| message["role"] == "assistant");
            messages.truncate(last.unwrap());
        }
    }
}

/// One run, and the model of what it should have.
struct Talk<'a> {
    steps: &'a RefCell<Vec<String>>,
    random: Random,
    count: usize,    // makes texts unique
    requests: usize, // so far
    server: Server,
    program: Program, // ends before the place does
    place: Place,
    messages: Vec<Value>,
    compacted: bool, // the conversation carries a summary by `/compact`
    other: bool,     // it is another one than the project's file holds
    saved: BTreeMap<String, Vec<Value>>,
    settings: BTreeMap<String, Value>, // sent with each request; null what the server refuses
    log: String,                       // what the tools have written
}

impl Talk<'_> {
    fn start(seed: u64, steps: &RefCell<Vec<String>>) -> Talk<'_> {
        let (server, place) = (Server::start([]), Place::new());
        place.config(&server, &format!("model=m\nmax_al_iterations={LIMIT}"));
        let program = match seed % 3 {
            0 => Screen(place.terminal(&server, &[])),
            _ => Pipes(place.start(&server, &[])),
        };
        let settings = json!({"model": "m", "temperature": 0.7, "stream": true,
            "stream_options": {"include_usage": true}});
        Talk {
            steps,
            random: Random(seed),
            count: 1000,
            requests: 0,
            server,
            program,
            place,
            messages: vec![json!({"role": "system", "content": ANY})],
            compacted: false,
            other: true,
            saved: BTreeMap::new(),
            settings: serde_json::from_value(settings).unwrap(),
            log: String::new(),
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if self.random.one_in(2) {
                self.turn();
            } else {
                self.command();
            }
            self.keep_project();
            self.check_files();
        }
        let signals = [0, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
        let signal = self.random.pick(&signals);
        match signal {
            0 => self.program.send("/quit\n"),
            signal => self.program.live().signal(signal),
        }
        let run = match self.program {
            Pipes(live) => live.finish(),
            Screen(terminal) => terminal.finish(),
        };
        assert_eq!(run.status, if signal > 0 { 128 + signal } else { 0 }, "{run}");
        assert!(!run.stdout.contains("panicked at"), "{run}");
        assert!(!run.stderr.contains("panicked at"), "{run}");
        check_sessions(&self.place, &self.saved);
    }

    /// Whether the model has said something: before, the conversation is not saved.
    fn said(&self) -> bool {
        self.compacted || self.messages.iter().any(|message| message["role"] == "assistant")
    }

    fn number(&mut self) -> String {
        self.count += 1;
        self.count.to_string()
    }

    /// One of `random.json`, with a new number in it.
    fn draw(&mut self, kind: &str) -> Value {
        let text = self.random.pick(KINDS[kind].as_array().unwrap()).to_string();
        serde_json::from_str(&text.replace("{n}", &self.number())).unwrap()
    }

    fn draw_text(&mut self, kind: &str) -> String {
        self.draw(kind).as_str().unwrap().into()
    }

    // ---- What the user does

    fn turn(&mut self) {
        let typed = self.draw_text("prompts");
        let mut messages = self.messages.clone();
        ask(&mut messages, &typed.replace("\\\n", "\n"));
        let (mut draft, mut plan) = (messages.clone(), Vec::new());
        while plan.len() < LIMIT && !plan.last().is_some_and(Step::is_last) {
            let step = self.step(&draft, &plan);
            step.apply(&mut draft);
            plan.push(step);
        }
        self.messages = self.play(&typed, plan, messages);
    }

    fn command(&mut self) {
        let project = self.place.project_id();
        let name = self.random.pick(&["a", "ab"]);
        let previous = project.clone() + "-prev";
        let said = self.said();
        match self.random.below(18) {
            0 | 1 => {
                self.line("/clear");
                self.messages.truncate(1);
                (self.compacted, self.other) = (false, true);
            }
            2 | 3 => {
                let command = self.random.pick(&["/continue", "/cont"]);
                self.line(command);
                if self.saved.contains_key(&project) {
                    self.load(&project);
                }
            }
            4..=7 if self.saved.contains_key(name) => {
                self.line(&format!("/load {name}"));
                self.load(name);
            }
            16 if self.saved.contains_key(&previous) => {
                self.line(&format!("/load {previous}"));
                self.load(&previous);
            }
            8 | 9 if said => self.save(&format!("/save {name}"), name),
            10 if said => self.save("/save", &project),
            11 | 12 if said => self.compact(),
            13 => {
                let setting = self.draw("settings");
                let (key, value) = (setting[0].as_str().unwrap().to_string(), &setting[1]);
                self.line(&format!("/cfg {key} {value}").replace('"', ""));
                if self.settings.get(&key) != Some(&Value::Null) {
                    self.settings.insert(key, value.clone());
                }
            }
            14 if matches!(self.program, Screen(_)) => {
                self.program.send("half a prompt\x03");
                self.line("");
            }
            _ => {
                let line = self.draw_text("lines");
                self.line(&line);
            }
        }
    }

    /// The conversation becomes a saved one, which the project's file may hold already.
    fn load(&mut self, id: &str) {
        self.messages = self.saved[id].clone();
        self.compacted = !self.messages.iter().any(|message| message["role"] == "assistant");
        self.other = id != self.place.project_id();
    }

    fn save(&mut self, command: &str, id: &str) {
        let step = if self.random.one_in(3) { self.failure() } else { self.text() };
        self.question(command, step);
        self.keep(id);
    }

    fn compact(&mut self) {
        let log = self.log.clone();
        let step = match self.random.below(5) {
            0 => self.failure(),
            1 => self.unfinished(),
            2 => self.calls("calls", json!({"content": null})),
            _ => self.text(),
        };
        let summary = match &step.outcome {
            Store(message, results) if results.is_empty() => text_of(message),
            _ => String::new(),
        };
        self.question("/compact", step);
        self.log = log; // no call has run
        if !summary.is_empty() {
            let content = format!("{ANY}{}{ANY}", summary.trim());
            self.messages.truncate(1);
            self.messages.push(json!({"role": "user", "content": content}));
            self.compacted = true;
        }
    }

    /// A command asks the model something, which does not join the conversation.
    fn question(&mut self, command: &str, step: Step) {
        let mut messages = self.messages.clone();
        ask(&mut messages, ANY);
        self.play(command, vec![step], messages);
    }

    /// A line to which no request belongs.
    fn line(&mut self, line: &str) {
        self.play(line, Vec::new(), Vec::new());
    }

    // ---- What the server replies

    /// Draws a reply; `draft` is the conversation then, `plan` what came before in this turn.
    fn step(&mut self, draft: &[Value], plan: &[Step]) -> Step {
        let (early, only_calls) = (plan.len() < LIMIT - 1, plan.iter().all(Step::has_calls));
        let repaired = plan.last().is_some_and(|step| matches!(step.outcome, Repair));
        match self.random.below(60) {
            // Whether a retry or a repair counts as an iteration is left open.
            44..=49 if repaired => Step::new(EMPTY, Reply::status(400, EMPTY), Fail), // once a call
            _ if !early && !only_calls => self.text(),
            0..=12 => self.calls("calls", json!({"content": null})),
            13..=25 => {
                let message = self.draw("messages");
                self.calls("calls", message)
            }
            26..=29 => self.failure(),
            30..=32 => self.unfinished(),
            33..=35 => self.calls("endless calls", json!({"content": null})),
            36 if early && only_calls => self.canned("retried", Retry),
            37..=40 if early && only_calls => {
                let key = self.draw_text("refusable");
                let stored = draft.iter().any(|message| message.get(&key).is_some());
                let sent = self.settings.get(&key).map_or(stored, |value| !value.is_null());
                let text = format!("Unsupported parameter: '{key}'");
                let reply = Reply::status(self.random.pick(&[400, 422]), &text);
                Step::new(text, reply, if sent { LeaveOut(key) } else { Fail })
            }
            41..=43 if early && plan.last().is_some_and(Step::has_calls) => {
                Step::new(EMPTY, Reply::status(400, EMPTY), Repair)
            }
            _ => self.text(),
        }
    }

    fn text(&mut self) -> Step {
        let message = self.draw("messages");
        self.message(message, Vec::new())
    }

    fn failure(&mut self) -> Step {
        self.canned("failures", Fail)
    }

    fn canned(&mut self, kind: &str, outcome: Outcome) -> Step {
        let drawn = self.draw(kind);
        let status = drawn["status"].as_u64().unwrap() as u16;
        let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_string);
        let reply = match &drawn["body"] {
            Value::Array(events) => stream(&events.iter().map(text).collect::<Vec<_>>()),
            body => Reply::status(status, &text(body)),
        };
        let broken = status == 200 && matches!(outcome, Retry);
        let reply = match self.random.below(4) {
            0 => reply.close(),
            1 if broken => reply.cut(),
            2 if broken => reply.reset(),
            _ => reply,
        };
        Step::new(drawn.to_string(), reply, outcome)
    }

    /// A message with calls. Of endless ones there is one, and none behind it runs.
    fn calls(&mut self, kind: &str, mut message: Value) -> Step {
        let (mut calls, mut results, mut interrupt) = (Vec::new(), Vec::new(), None);
        let count = 1 + self.random.below(3);
        let last = if kind == "calls" { count } else { self.random.below(count) };
        for place in 0..count {
            let mut call = self.draw("ids");
            let kinds = if place == last { [kind; 2] } else { ["calls", "broken calls"] };
            let kind = self.random.pick(&kinds);
            let drawn = self.draw(kind);
            (call["type"], call["function"]) = ("function".into(), drawn["function"].clone());
            calls.push(call);
            if place == last {
                interrupt = Some(Event::File(format!("started-{}", self.count)));
            }
            if place > last {
                results.push("interrupted by the user".into());
                continue;
            }
            if let Some(log) = drawn["log"].as_str() {
                self.log = log.replace("<log>", &self.log);
            }
            let result = drawn["result"].as_str().unwrap();
            results.push(result.replace("<size>", &self.log.len().to_string()).into());
        }
        message["tool_calls"] = calls.into();
        Step { interrupt, ..self.message(message, results) }
    }

    /// Ctrl+C while a reply is awaited, or while it comes.
    fn unfinished(&mut self) -> Step {
        let text = format!("half {}", self.number());
        let half = json!({"index": 0, "function": {"name": "shell_exec", "arguments": "{"}});
        let half = stream(&[delta(json!({"content": text, "tool_calls": [half]}))]).stall();
        let (about, reply, event) = match self.random.below(3) {
            0 => ("no reply", Reply::hang(), Event::Request),
            1 => ("some of a reply", half, Event::Request),
            _ => ("half a reply", half, Event::Output(text)),
        };
        Step { interrupt: Some(event), ..Step::new(about, reply, Fail) }
    }

    /// Sends a message, whole or streamed.
    fn message(&mut self, message: Value, results: Vec<Value>) -> Step {
        let mut stored = mended(&message);
        let reason = self.random.pick(&["stop", "tool_calls"]);
        let reply = if self.random.one_in(3) {
            let choice = json!({"index": 0, "message": message, "finish_reason": reason});
            Reply::json(json!({"choices": [choice], "usage": {"prompt_tokens": 5}}))
        } else {
            if message["content"].is_array() {
                stored["content"] = text_of(&message).into(); // in whichever parts
            }
            let deltas = self.deltas(message.clone()).into_iter();
            let mut events: Vec<String> = deltas.map(delta).collect();
            if self.random.one_in(8) {
                let place = self.random.below(events.len() + 1);
                events.insert(place, self.draw_text("lost")); // does not parse, and is left out
            }
            let end = [finish(reason), usage(5, 0, 5), "[DONE]".into()];
            let ends = [&end[..], &end[..1], &end[..2], &end[1..2], &end[2..]];
            events.extend_from_slice(self.random.pick(&ends));
            stream(&events)
        };
        let reply = match self.random.below(6) {
            0 => reply.split_every(97),
            1 => reply.with_length(),
            2 => reply.close(),
            _ => reply,
        };
        Step::new(message.to_string(), reply, Store(stored, results))
    }

    /// A message in one to three pieces. Calls have an index, or none where each opens a new one.
    fn deltas(&mut self, mut message: Value) -> Vec<Value> {
        message["role"] = "assistant".into();
        let calls = message["tool_calls"].as_array_mut();
        let calls = calls.map_or(&mut [][..], Vec::as_mut_slice);
        let mut ids = HashSet::new();
        let distinct = calls.iter().all(|call| match call["id"].as_str().unwrap_or_default() {
            "" => call["function"]["name"].is_string(),
            id => ids.insert(id),
        });
        if !distinct || self.random.one_in(2) {
            calls.iter_mut().zip(0..).for_each(|(call, index)| call["index"] = index.into());
        }
        let mut second = self.split("", &mut message);
        let third = self.split("", &mut second);
        let mut deltas = vec![message, second, third];
        for delta in &mut deltas {
            let text = text_of(delta);
            if !text.is_empty() && self.random.one_in(4) {
                // Some servers send a text in some deltas, and a list of parts in others.
                let parts = json!([{"type": "text", "text": text}]);
                delta["content"] = if delta["content"].is_array() { text.into() } else { parts };
            }
        }
        deltas.retain(Value::is_object);
        deltas
    }

    /// Splits what grows: the first parts stay, the second ones are returned. Of a list's entries
    /// that have no index only the last one can go on.
    fn split(&mut self, key: &str, value: &mut Value) -> Value {
        const GROWING: [&str; 5] =
            ["content", "reasoning", "reasoning_content", "text", "arguments"];
        const LISTS: [&str; 3] = ["content", "tool_calls", "reasoning_details"];
        match value {
            Value::String(text) if GROWING.contains(&key) => {
                let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
                let place = if places.is_empty() { 0 } else { self.random.pick(&places) };
                text.split_off(place).into()
            }
            Value::Object(fields) => {
                let mut rest = Map::new();
                for (key, value) in fields.iter_mut() {
                    let value = self.split(key, value);
                    rest.extend(Some((key.clone(), value)).filter(|(_, value)| !value.is_null()));
                }
                if rest.is_empty() { Value::Null } else { rest.into() }
            }
            Value::Array(entries) if LISTS.contains(&key) => {
                let later = entries.split_off(self.random.below(entries.len() + 1));
                let (mut rest, count) = (Vec::new(), entries.len());
                for (entry, number) in entries.iter_mut().zip(1..) {
                    let index = entry.get("index").cloned();
                    if (index.is_none() && number < count) || key == "content" {
                        continue;
                    }
                    let mut second = self.split("", entry);
                    if second.is_object() {
                        index.into_iter().for_each(|index| second["index"] = index);
                        rest.push(second);
                    }
                }
                rest.extend(later);
                if rest.is_empty() { Value::Null } else { rest.into() }
            }
            _ => Value::Null,
        }
    }

    // ---- Running and checking

    /// Types a line and replies as planned. The first request should have these messages; returns
    /// the conversation afterwards.
    fn play(&mut self, line: &str, plan: Vec<Step>, messages: Vec<Value>) -> Vec<Value> {
        self.steps.borrow_mut().push(format!("{line:?}"));
        for step in &plan {
            let end = if step.interrupt.is_some() { ", then Ctrl+C" } else { "" };
            self.steps.borrow_mut().push(format!("    {}{end}", step.about));
            self.server.push(step.reply.clone());
        }
        self.program.send(&format!("{line}\n"));
        if let Some(event) = plan.last().and_then(|step| step.interrupt.as_ref()) {
            self.server.wait_for_requests(self.requests + plan.len());
            match event {
                Event::Request => {}
                Event::Output(text) => self.program.live().wait_for_stdout(text),
                Event::File(name) => wait_until(name, || self.place.path(name).exists()),
            }
            self.program.interrupt(1 + self.random.below(2));
        }
        let done = self.number();
        self.program.send(&format!("!printf done-%s {done}\n"));
        self.program.live().wait_for_stdout(&format!("done-{done}"));
        self.check_requests(plan, messages)
    }

    fn check_requests(&mut self, plan: Vec<Step>, mut messages: Vec<Value>) -> Vec<Value> {
        if plan.is_empty() {
            return messages; // a request now would count as one of the next turn
        }
        let requests = self.server.requests().split_off(self.requests);
        assert_eq!(requests.len(), plan.len(), "requests");
        self.requests += plan.len();
        for (request, step) in requests.iter().zip(plan) {
            assert_eq!(well_formed(request.messages()), Ok(()));
            let mut wanted = messages.clone();
            for (key, value) in &self.settings {
                assert_eq!(request.body[key], *value, "{key}");
                let fields = wanted.iter_mut().filter_map(Value::as_object_mut);
                fields.filter(|_| value.is_null()).for_each(|fields| drop(fields.remove(key)));
            }
            assert_same(request.messages(), &wanted);
            for (message, sent) in messages.iter_mut().zip(request.messages()) {
                message.as_object_mut().unwrap().extend(sent.as_object().unwrap().clone());
            }
            step.apply(&mut messages);
            if let LeaveOut(key) = step.outcome {
                self.settings.insert(key, Value::Null);
            }
        }
        messages
    }

    /// After every line the conversation should be saved for the project, once the model has said
    /// something. Another one that was saved before is kept.
    fn keep_project(&mut self) {
        if !self.said() {
            return;
        }
        let project = self.place.project_id();
        let previous = project.clone() + "-prev";
        let old = self.saved.remove(&project);
        // Whether one that was loaded is another one than its like is left open.
        let alike = old.as_ref() == Some(&self.messages);
        let kept = |old: &Vec<Value>| !alike || find(&self.place, &previous).as_ref() == Some(old);
        if let Some(old) = old.filter(|old| self.other && kept(old)) {
            self.saved.insert(previous, old);
        }
        self.other = false;
        self.keep(&project);
    }

    /// The conversation should now be saved under this id; from here on no letter of it changes.
    fn keep(&mut self, id: &str) {
        let saved = session(&self.place, id);
        assert_same(&saved, &self.messages);
        self.messages = saved.clone();
        self.saved.insert(id.into(), saved);
    }

    /// The saved sessions, and the file that the tools write.
    fn check_files(&self) {
        check_sessions(&self.place, &self.saved);
        let log = fs::read_to_string(self.place.path("log")).unwrap_or_default();
        assert_eq!(log, self.log, "what the tools wrote");
    }
}

fn check_sessions(place: &Place, wanted: &BTreeMap<String, Vec<Value>>) {
    let files = fs::read_dir(place.sessions()).into_iter().flatten();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let ids = names.filter_map(|name| name.strip_suffix(".json").map(str::to_string));
    let mut ids: Vec<String> = ids.filter(|id| !id.starts_with('.')).collect(); // no temporary one
    ids.sort();
    assert!(ids.iter().eq(wanted.keys()), "sessions: {ids:?}, not {:?}", wanted.keys());
    for (id, saved) in wanted {
        assert_eq!(well_formed(saved), Ok(()), "session {id}");
        assert_same(&session(place, id), saved);
    }
}

fn stream(events: &[String]) -> Reply {
    Reply::sse(&events.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The messages of a saved session.
fn session(place: &Place, id: &str) -> Vec<Value> {
    find(place, id).unwrap_or_else(|| panic!("no session {id}"))
}

fn find(place: &Place, id: &str) -> Option<Vec<Value>> {
    let file = fs::read(place.sessions().join(format!("{id}.json"))).ok()?;
    let session: Value = serde_json::from_slice(&file).unwrap();
    assert!(session["summary"].is_string(), "no summary in session {id}");
    Some(session["messages"].as_array().expect("messages").clone())
}

/// Fails where messages are not those of the model.
fn assert_same(messages: &[Value], model: &[Value]) {
    for place in 0..messages.len().max(model.len()) {
        let at = |list: &[Value]| list.get(place).cloned().unwrap_or_default();
        let (message, wanted) = (at(messages), at(model));
        assert!(fits(&message, &wanted), "message {place} is\n{message}\nand not\n{wanted}");
    }
}
