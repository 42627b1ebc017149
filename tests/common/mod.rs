//! Runs the real `mb` in a fresh folder against a scripted server, over pipes or on a terminal.
//!
//! A test scripts the server's replies (`Server`, `Reply`), runs `mb` (`Place`, `Run`, `Live`,
//! `Terminal`) and asserts what was asked, shown and written. Every wait is for an event, with a
//! limit that only a fault reaches: no test depends on the machine's speed.
//!
//! Who reads a failure sees what was wanted, what came, and the transcript. The transcript comes by
//! itself: a run, a running mb and a server that are dropped because an assertion failed print what
//! they know, unless the assertion has done so (`{run}`).
#![allow(dead_code, unused_imports, unused_macros)] // each test file uses a part

// ---- What a failed assertion says

/// `assert!` as everybody knows it, whose message also says the condition. Test files take it in
/// place of the usual one by `#[macro_use] mod common;`.
macro_rules! assert {
    ($condition:expr $(,)?) => {
        if !$condition {
            panic!("wanted: {}", stringify!($condition))
        }
    };
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            panic!("wanted: {}\n{}", stringify!($condition), format_args!($($message)+))
        }
    };
}

/// `assert_eq!` as everybody knows it: first what came, then what was wanted. Its message says so.
macro_rules! assert_eq {
    ($came:expr, $wanted:expr $(,)?) => { assert_eq!($came, $wanted, "") };
    ($came:expr, $wanted:expr, $($message:tt)+) => {
        match (&$came, &$wanted) {
            (came, wanted) => {
                if !(*came == *wanted) {
                    let texts = (format!("{came:?}"), format!("{wanted:?}"));
                    let unequal = $crate::common::unequal(stringify!($came), &texts.0, &texts.1);
                    panic!("{unequal}\n{}", format_args!($($message)+))
                }
            }
        }
    };
}

mod form;
mod server;

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use serde_json::Value;

pub use form::{ANY, ask, fits, mended, text_of, well_formed};
pub use server::{Gate, Reply, Request, Server, delta, finish, usage};

pub const CTRL_C: u8 = 0x03;
pub const CTRL_D: u8 = 0x04;
const LIMIT: Duration = Duration::from_secs(30); // of one wait

/// The binary under test.
pub fn mb() -> String {
    std::env::var("MB_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_mb").into())
}

// ---- What this machine lacks

/// Says that this test is skipped, and what it needs, even where a passed test's output is hidden.
/// With `MB_NO_SKIPS` set, a test that is skipped has failed. Usage: `return skip("jq")`.
#[track_caller]
pub fn skip(need: &str) {
    let test = thread::current().name().unwrap_or("a test").to_string();
    let line = format!("skipped: {test} needs {need}\n");
    let _ = io::stderr().write_all(line.as_bytes()); // which the harness does not capture
    assert!(std::env::var_os("MB_NO_SKIPS").is_none(), "{line}and MB_NO_SKIPS is set");
}

/// Whether one of these programs is missing; then the test is skipped:
/// `if lacks(&["jq", "curl"]) { return }`.
#[track_caller]
pub fn lacks(programs: &[&str]) -> bool {
    let missing = |program: &&&str| find(program).is_none();
    let missing: Vec<&str> = programs.iter().filter(missing).copied().collect();
    if !missing.is_empty() {
        skip(&missing.join(", "));
    }
    !missing.is_empty()
}

/// Whether this program does not work here, as strace where nobody may trace; then the test is
/// skipped.
#[track_caller]
pub fn cannot(program: &[&str]) -> bool {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let works = command.status().is_ok_and(|status| status.success());
    if !works {
        skip(&program.join(" "));
    }
    !works
}

/// Where a program is, by `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files.find(|file| file.metadata().is_ok_and(|it| it.is_file() && it.mode() & 0o111 != 0))
}

// ---- A place to run in

/// A fresh folder with `work`, where mb runs, and `home`. Dropping it kills every process that
/// was started in it, mb's own commands included, and removes it.
pub struct Place {
    root: PathBuf,
}

impl Place {
    pub fn new() -> Place {
        let temp = std::env::temp_dir();
        let temp = temp.canonicalize().unwrap_or_else(|error| panic!("{temp:?}: {error}"));
        let root = temp.join(format!("mb-test-{}", unforeseeable()));
        for folder in [&root, &root.join("work"), &root.join("home")] {
            fs::create_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        }
        Place { root }
    }

    /// The folder in which mb runs.
    pub fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// A file's path in the work folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.work().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The folder of the saved sessions.
    pub fn sessions(&self) -> PathBuf {
        self.home().join(".bantam/sessions")
    }

    pub fn project_id(&self) -> String {
        let hash = Md5::digest(self.work().as_os_str().as_bytes());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The project's saved session.
    pub fn session(&self) -> Value {
        let file = self.sessions().join(self.project_id() + ".json");
        let text = fs::read(&file).unwrap_or_else(|error| panic!("no saved session: {error}"));
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            panic!("the saved session: {error}\n{}", String::from_utf8_lossy(&text))
        })
    }

    /// A socket in the work folder. Its address is short, however long the folder's path is.
    pub fn socket(&self, name: &str) -> UnixListener {
        let folder = File::open(self.work()).unwrap();
        let address = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
        UnixListener::bind(&address).unwrap_or_else(|error| panic!("{address}: {error}"))
    }

    /// Writes `model.cfg`: the server as the endpoint, then these lines.
    pub fn config(&self, server: &Server, lines: &str) {
        self.write("model.cfg", format!("endpoint={}\n{lines}\n", server.url()));
    }

    /// Runs mb to its end with this standard input.
    pub fn run(&self, server: &Server, args: &[&str], stdin: &str) -> Run {
        self.mb(server, args).stdin(stdin).run()
    }

    /// Starts mb on pipes, its standard input left open.
    pub fn start(&self, server: &Server, args: &[&str]) -> Live {
        self.mb(server, args).start()
    }

    /// Starts mb on a terminal of 80 columns and 24 rows.
    pub fn terminal(&self, server: &Server, args: &[&str]) -> Terminal {
        self.mb(server, args).terminal(80, 24)
    }

    /// A call of mb to be detailed. Without a configuration file it gets the server as endpoint.
    pub fn mb(&self, server: &Server, args: &[&str]) -> Mb {
        if !self.path("model.cfg").exists() && !self.path(".bantam.cfg").exists() {
            self.config(server, "");
        }
        Mb { asked: server.asked(), ..self.mb_alone(args) }
    }

    /// The same without a server; nothing is written.
    pub fn mb_alone(&self, args: &[&str]) -> Mb {
        self.program(&[&[mb().as_str()], args].concat())
    }

    /// A call of mb through another program, such as strace, which is given mb and its arguments.
    pub fn through(&self, program: &[&str], server: &Server, args: &[&str]) -> Mb {
        let called = self.program(&[program, &[mb().as_str()], args].concat());
        Mb { command: called.command, ..self.mb(server, args) }
    }

    fn program(&self, words: &[&str]) -> Mb {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.work()).env_clear().env("HOME", self.home());
        command.env("PATH", std::env::var_os("PATH").unwrap());
        command.envs([("LANG", "C.UTF-8"), ("TERM", "xterm-256color")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        unsafe { command.pre_exec(heed_signals) };
        let (asked, limit) = (Box::new(|| "no server".into()), Duration::from_secs(60));
        Mb { command, asked, stdin: Vec::new(), limit, held: None }
    }
}

/// A text that was never there before and that nobody can guess. It has neither digits nor vowels,
/// so it holds nothing that a test looks for.
pub fn unforeseeable() -> String {
    let number = RandomState::new().build_hasher().finish(); // the keys come from the kernel
    (0..16)
        .map(|place| char::from(b"bcdfghjkmnpqrtvz"[(number >> (4 * place)) as usize % 16]))
        .collect()
}

impl Drop for Place {
    fn drop(&mut self) {
        let marker = format!("{}/", self.root.display()); // so that place 2 spares those of place 27
        for pid in processes_with(&marker) {
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A call of mb: its environment, its input, and where its output goes.
pub struct Mb {
    command: Command,
    asked: Asked,
    stdin: Vec<u8>,
    limit: Duration,
    held: Option<Gate>,
}

impl Mb {
    /// One more argument, which need not be UTF-8.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Mb {
        self.command.arg(argument);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Mb {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: &str) -> Mb {
        self.command.env_remove(name);
        self
    }

    /// The standard input of `run`; without it there is none.
    pub fn stdin(self, text: impl AsRef<[u8]>) -> Mb {
        Mb { stdin: text.as_ref().into(), ..self }
    }

    /// Sends stdout elsewhere, to a file such as `/dev/full`.
    pub fn stdout(mut self, to: impl Into<Stdio>) -> Mb {
        self.command.stdout(to);
        self
    }

    /// Starts mb without a stdout, as `mb >&-` does.
    pub fn stdout_closed(mut self) -> Mb {
        unsafe { self.command.pre_exec(|| check(libc::close(1))) };
        self
    }

    /// Makes stdout a pipe whose reader is gone.
    pub fn stdout_unread(self) -> Mb {
        self.stdout(io::pipe().unwrap().1)
    }

    /// Nobody reads stdout before the test opens the gate.
    pub fn stdout_held(self, gate: &Gate) -> Mb {
        Mb { held: Some(gate.clone()), ..self }
    }

    /// Prepares mb's process before it starts: its umask, limits, privileges.
    pub fn setup(mut self, prepare: fn()) -> Mb {
        let prepare = move || {
            prepare();
            Ok(())
        };
        unsafe { self.command.pre_exec(prepare) };
        self
    }

    /// Starts mb with this signal ignored, as `nohup` does.
    pub fn ignoring(mut self, signal: i32) -> Mb {
        unsafe {
            self.command.pre_exec(move || {
                libc::signal(signal, libc::SIG_IGN);
                Ok(())
            })
        };
        self
    }

    /// Another limit for the whole run than 60 seconds.
    pub fn limit(self, seconds: u64) -> Mb {
        Mb { limit: Duration::from_secs(seconds), ..self }
    }

    /// Runs mb to its end.
    pub fn run(mut self) -> Run {
        let stdin = std::mem::take(&mut self.stdin);
        let mut live = self.start();
        live.send(stdin);
        live.close_stdin();
        live.finish()
    }

    /// Starts mb; its standard input is left open, so `start().finish()` is a run with one.
    pub fn start(mut self) -> Live {
        let path = std::env::var("PATH").unwrap();
        let mut shown = format!("{:?}", self.command).replace(&path, "$PATH");
        for name in [".bantam.cfg", "model.cfg"] {
            let file = self.command.get_current_dir().map(|folder| folder.join(name));
            if let Some(text) = file.and_then(|file| fs::read(file).ok()) {
                shown += &format!("\n{name}: {:?}", String::from_utf8_lossy(&text));
            }
        }
        let mut child = self.command.spawn().unwrap_or_else(|error| panic!("{shown}: {error}"));
        let stdin = child.stdin.take();
        let held = self.held.take();
        let out = child.stdout.take().map(|out| Held { out, gate: held });
        let out = out.map_or_else(|| Output::of(io::empty()), Output::of);
        let err = child.stderr.take().map_or_else(|| Output::of(io::empty()), Output::of);
        let (limit, asked, reported) = (self.limit, self.asked, false);
        Live { child, stdin, out, err, shown, limit, asked, reported }
    }

    /// Starts mb as the leader of a session with a terminal of this size.
    pub fn terminal(mut self, columns: u16, rows: u16) -> Terminal {
        let (master, slave) = open_terminal(columns, rows);
        unsafe {
            self.command.pre_exec(|| check(libc::setsid()));
            self.command.pre_exec(|| check(libc::ioctl(0, libc::TIOCSCTTY, 0)));
        }
        self.command.stdin(slave.try_clone().unwrap());
        self.command.stdout(slave.try_clone().unwrap()).stderr(slave);
        let hung_up = Arc::new(AtomicBool::new(false));
        let reader = Master { side: master.try_clone().unwrap(), hung_up: hung_up.clone() };
        let mut live = self.start();
        live.out = Output::of(reader);
        Terminal { live, master: Some(master), hung_up }
    }
}

/// Tests that run in the background have inherited ignored signals; mb must not.
fn heed_signals() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGCHLD] {
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(())
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Tells how many requests the server had; for the report of a run.
pub type Asked = Box<dyn Fn() -> String>;

// ---- A run

/// A run that has ended, or how far it came. Its `Display` is the transcript.
pub struct Run {
    pub status: i32, // 128 + the signal if one killed it; -1 while it runs
    pub stdout: String,
    pub stderr: String,
    transcript: Transcript,
}

impl Display for Run {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        self.transcript.fmt(f)
    }
}

/// Fails unless a text has these parts, in this order.
#[track_caller]
pub fn in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let Some(at) = rest.find(part) else {
            panic!("wanted: {part:?}, behind what was found before it\nin what is left: {rest:?}")
        };
        rest = &rest[at + part.len()..];
    }
}

/// Tells what came in place of what was wanted, and of long texts where they begin to differ.
pub fn unequal(what: &str, came: &str, wanted: &str) -> String {
    let mut text = format!("{what}\n  wanted: {wanted}\n  came:   {came}");
    if came.len().max(wanted.len()) > 100 {
        let same = came.chars().zip(wanted.chars()).take_while(|(one, other)| one == other).count();
        let from = |text: &str| text.chars().skip(same.saturating_sub(20)).take(80).collect();
        let (wants, comes): (String, String) = (from(wanted), from(came));
        text += &format!("\n  they differ behind {same} characters:");
        text += &format!("\n  wanted: ...{wants}\n  came:   ...{comes}");
    }
    text
}

/// What is known of a run. If an assertion fails that has not shown it, it shows itself.
struct Transcript {
    text: String,
    shown: Cell<bool>,
}

impl Display for Transcript {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        self.shown.set(true);
        f.write_str(&self.text)
    }
}

impl Drop for Transcript {
    fn drop(&mut self) {
        if thread::panicking() && !self.shown.get() {
            println!("{self}");
        }
    }
}

/// An output as a transcript has it: control characters are visible, and of a long one both ends.
fn visible(output: &str) -> String {
    let whole = output.len() < 40_000;
    let characters: Vec<char> = output.chars().collect();
    let middle = characters.len() / 2;
    let (first, last) = match whole {
        true => (&characters[..], &[][..]),
        false => (
            &characters[..middle.min(10_000)],
            &characters[middle.max(characters.len() - 10_000)..],
        ),
    };
    let show = |part: &[char]| -> String {
        let escape = |c: &char| match c {
            '\n' | '\t' => c.to_string(),
            c if c.is_control() => c.escape_debug().to_string(),
            c => c.to_string(),
        };
        part.iter().map(escape).collect()
    };
    let gap = if whole { "" } else { "\n[... left out here ...]\n" };
    show(first) + gap + &show(last)
}

/// A running mb on pipes. Dropping it kills it.
pub struct Live {
    child: Child,
    stdin: Option<ChildStdin>,
    out: Output,
    err: Output,
    shown: String,
    limit: Duration,
    asked: Asked,
    reported: bool,
}

impl Live {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for what is to happen while mb runs.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        let came = poll(LIMIT, || condition().then_some(()));
        assert!(came.is_some(), "waited {LIMIT:?} in vain: {what}{}", self.report());
    }

    /// Writes to the standard input; that mb has ended already is no error here.
    pub fn send(&mut self, text: impl AsRef<[u8]>) {
        let _ = self.stdin.as_mut().expect("an open stdin").write_all(text.as_ref());
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits for a text on stdout behind the one waited for before.
    #[track_caller]
    pub fn wait_for_stdout(&mut self, text: &str) {
        let (seen, found) = (self.out.seen, self.out.find(text));
        assert!(found, "wanted {text:?} on stdout behind byte {seen}{}", self.report());
    }

    /// Waits for a text on stderr behind the one waited for before.
    #[track_caller]
    pub fn wait_for_stderr(&mut self, text: &str) {
        let (seen, found) = (self.err.seen, self.err.find(text));
        assert!(found, "wanted {text:?} on stderr behind byte {seen}{}", self.report());
    }

    /// Sends a signal to mb alone, as `kill` does.
    #[track_caller]
    pub fn signal(&self, signal: i32) {
        let sent = check(unsafe { libc::kill(self.pid(), signal) });
        sent.unwrap_or_else(|error| panic!("signal {signal} to mb: {error}"));
    }

    /// Waits until mb is stuck in the middle of printing, since nobody reads its stdout.
    pub fn wait_until_stuck(&self) {
        wait_until("the pipe behind stdout is full", || self.unread(1) >= 60_000);
    }

    /// Waits until mb has taken all that was sent to its standard input.
    pub fn wait_until_read(&self) {
        wait_until("the standard input is read", || self.unread(0) == 0);
    }

    /// How many bytes there are in the pipe behind this descriptor of mb.
    fn unread(&self, descriptor: i32) -> i32 {
        let pipe = File::open(format!("/proc/{}/fd/{descriptor}", self.pid()));
        let mut count = 0;
        let file = pipe.unwrap_or_else(|error| panic!("descriptor {descriptor}: {error}"));
        assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &mut count) }, 0);
        count
    }

    /// Waits until no signal that was sent is still on its way.
    pub fn wait_for_delivery(&self) {
        wait_until("the signal is delivered", || !pending(self.pid()));
    }

    /// Waits for mb's end and for that of its output.
    #[track_caller]
    pub fn finish(mut self) -> Run {
        let ended = poll(self.limit, || {
            let ended = self.child.try_wait().unwrap().is_some();
            (ended && self.out.ended() && self.err.ended()).then_some(())
        });
        let run = self.report();
        let state = if run.status < 0 { "mb has not ended" } else { "its output is still open" };
        assert!(ended.is_some(), "{state} after {:?}{run}", self.limit);
        run
    }

    /// What is known so far.
    pub fn report(&mut self) -> Run {
        self.reported = true;
        let status = self.child.try_wait().unwrap();
        let code = |end: std::process::ExitStatus| end.code().or(end.signal().map(|s| 128 + s));
        let status = status.and_then(code).unwrap_or(-1);
        let (stdout, stderr) = (self.out.text(), self.err.text());
        let (shown, asked) = (&self.shown, (self.asked)());
        let state = if status < 0 { "it still runs".into() } else { status.to_string() };
        let rule = "=".repeat(78);
        let text = format!(
            "\n{rule}\ncommand: {shown}\nstatus: {state}\nserver: {asked}\n\
                --- stdout\n{}\n--- stderr\n{}\n{rule}",
            visible(&stdout),
            visible(&stderr)
        );
        Run { status, stdout, stderr, transcript: Transcript { text, shown: Cell::new(false) } }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if thread::panicking() && !self.reported {
            println!("{}", self.report());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A stdout that is not read before its gate opens.
struct Held {
    out: std::process::ChildStdout,
    gate: Option<Gate>,
}

impl Read for Held {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.gate.as_ref().is_some_and(|gate| !gate.is_open()) {
            thread::sleep(Duration::from_millis(10));
        }
        self.out.read(buffer)
    }
}

/// What a process has written so far, collected by a thread.
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    seen: usize, // how far the waits have come
}

impl Output {
    fn of(mut from: impl Read + Send + 'static) -> Output {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let to = bytes.clone();
        let reader = thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                to.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        Output { bytes, reader, seen: 0 }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn ended(&self) -> bool {
        self.reader.is_finished()
    }

    /// Waits for a text behind the last one found; says whether it came.
    fn find(&mut self, text: &str) -> bool {
        let found = poll(LIMIT, || {
            let ended = self.ended();
            let bytes = self.bytes.lock().unwrap();
            let at = bytes[self.seen..].windows(text.len()).position(|w| w == text.as_bytes());
            if at.is_some() || ended { Some(at) } else { None }
        });
        let Some(Some(at)) = found else { return false };
        self.seen += at + text.len();
        true
    }
}

// ---- A terminal

/// A running mb on a terminal of its own; `live` has its pid and takes signals.
pub struct Terminal {
    pub live: Live,
    master: Option<File>,
    hung_up: Arc<AtomicBool>,
}

impl Terminal {
    /// Types a text; the Enter key is `\r`.
    #[track_caller]
    pub fn type_text(&mut self, text: &str) {
        let typed = self.master.as_mut().expect("a terminal").write_all(text.as_bytes());
        typed.unwrap_or_else(|error| panic!("{text:?} cannot be typed: {error}"));
    }

    #[track_caller]
    pub fn key(&mut self, key: u8) {
        self.type_text(&char::from(key).to_string());
    }

    /// Waits for a text in the raw output behind the one waited for before.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        self.live.wait_for_stdout(text);
    }

    /// All that came so far, escape sequences included, and what was typed, as echoed.
    pub fn raw(&self) -> String {
        self.live.out.text()
    }

    /// The raw output as a terminal would show it, without colors and without wrapped lines.
    pub fn screen(&self) -> String {
        screen(&self.raw())
    }

    /// Closes the terminal's window.
    pub fn hang_up(&mut self) {
        self.hung_up.store(true, SeqCst);
        poll(LIMIT, || self.live.out.ended().then_some(())).expect("the terminal's reader stops");
        self.master = None;
    }

    /// Waits for mb's end. All its output is in `stdout`.
    #[track_caller]
    pub fn finish(self) -> Run {
        self.live.finish()
    }
}

/// The user's side of a terminal, read until mb is gone or the test hangs up.
struct Master {
    side: File,
    hung_up: Arc<AtomicBool>,
}

impl Read for Master {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut ready =
            libc::pollfd { fd: self.side.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        while !self.hung_up.load(SeqCst) {
            if unsafe { libc::poll(&mut ready, 1, 20) } > 0 {
                return self.side.read(buffer);
            }
        }
        Ok(0)
    }
}

/// Opens a terminal's two sides. No process inherits them by accident: a hang-up has to close all.
fn open_terminal(columns: u16, rows: u16) -> (File, File) {
    let open = |path: &str| {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(path).unwrap()
    };
    let master = open("/dev/ptmx");
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut number, unlock) = (0, 0);
    for (request, at) in [
        (libc::TIOCSPTLCK, (&raw const unlock).cast_mut()),
        (libc::TIOCGPTN, &raw mut number),
        (libc::TIOCSWINSZ, (&raw const size).cast_mut().cast()),
    ] {
        let result = unsafe { libc::ioctl(master.as_raw_fd(), request, at) };
        check(result).unwrap_or_else(|error| panic!("a terminal of {columns} x {rows}: {error}"));
    }
    let slave = open(&format!("/dev/pts/{number}"));
    (master, slave)
}

/// Applies carriage returns, backspaces and "erase to the end"; drops all other sequences.
pub fn screen(raw: &str) -> String {
    let (mut lines, mut column) = (vec![Vec::new()], 0usize);
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        let line: &mut Vec<char> = lines.last_mut().unwrap();
        match c {
            '\r' => column = 0,
            '\n' => lines.push(Vec::new()),
            '\u{8}' => column = column.saturating_sub(1),
            '\u{1b}' => {
                let sequence = chars.next() == Some('['); // ESC [ numbers letter
                if sequence && chars.find(char::is_ascii_alphabetic) == Some('K') {
                    line.truncate(column);
                }
            }
            c => {
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
        }
    }
    lines.iter().map(String::from_iter).collect::<Vec<_>>().join("\n")
}

// ---- Waiting and processes

/// Waits for a condition; fails with `what` was waited for.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let came = poll(LIMIT, || condition().then_some(()));
    assert!(came.is_some(), "waited {LIMIT:?} in vain: {what}");
}

/// Asks every 10 ms until there is an answer or the limit is reached.
fn poll<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        match ask() {
            None if start.elapsed() < limit => thread::sleep(Duration::from_millis(10)),
            answer => return answer,
        }
    }
}

/// Whether a process runs; a dead one that nobody has waited for does not.
pub fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Whether a signal is on its way to a process that lives.
pub fn pending(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut sets = status.lines().filter(|line| line.contains("Pnd:"));
    sets.any(|line| !line.trim_end().ends_with("\t0000000000000000")) && alive(pid)
}

/// The other processes that have this text in their command line, environment or folder.
pub fn processes_with(marker: &str) -> Vec<i32> {
    let has = |pid: i32| {
        let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let folder = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        let folder = folder.into_os_string().into_vec();
        let text = [read("cmdline"), read("environ"), folder].join(&b'\n');
        String::from_utf8_lossy(&text).replace('\0', " ").contains(marker)
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| pid != std::process::id() as i32 && has(pid)).collect()
}
