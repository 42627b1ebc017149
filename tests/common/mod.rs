//! Runs the real `mb` in a fresh folder against a scripted server, over pipes or on a terminal.
//!
//! A test scripts the server's replies (`Server`, `Reply`), runs `mb` (`Place`, `Run`, `Live`,
//! `Terminal`) and asserts what was asked, shown and written. Every wait is for an event, with a
//! limit that only a fault reaches: no test depends on the machine's speed.
#![allow(dead_code, unused_imports)] // each test file uses a part

mod form;
mod server;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
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

// ---- A place to run in

/// A fresh folder with `work`, where mb runs, and `home`. Dropping it kills every process that
/// was started in it, mb's own commands included, and removes it.
pub struct Place {
    root: PathBuf,
}

impl Place {
    pub fn new() -> Place {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("mb-test-{}-{}", std::process::id(), COUNT.fetch_add(1, SeqCst));
        let root = std::env::temp_dir().canonicalize().unwrap().join(name);
        fs::create_dir(&root).unwrap();
        for folder in ["work", "home"] {
            fs::create_dir(root.join(folder)).unwrap();
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
        fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The folder of the saved sessions.
    pub fn sessions(&self) -> PathBuf {
        self.home().join(".bantam/sessions")
    }

    pub fn project_id(&self) -> String {
        let hash = Md5::digest(self.work().to_str().unwrap());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The project's saved session.
    pub fn session(&self) -> Value {
        let file = self.sessions().join(self.project_id() + ".json");
        serde_json::from_slice(&fs::read(&file).expect("a saved session")).unwrap()
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
        let mut command = Command::new(mb());
        command.args(args).current_dir(self.work()).env_clear().env("HOME", self.home());
        command.env("PATH", std::env::var_os("PATH").unwrap());
        command.envs([("LANG", "C.UTF-8"), ("TERM", "xterm-256color")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        unsafe { command.pre_exec(heed_signals) };
        let (asked, limit) = (Box::new(|| "no server".into()), Duration::from_secs(60));
        Mb { command, asked, stdin: Vec::new(), limit }
    }
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
}

impl Mb {
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
        let shown = format!("{:?}", self.command).replace(&path, "$PATH");
        let mut child = self.command.spawn().unwrap_or_else(|error| panic!("{shown}: {error}"));
        let stdin = child.stdin.take();
        let out = child.stdout.take().map_or_else(|| Output::of(io::empty()), Output::of);
        let err = child.stderr.take().map_or_else(|| Output::of(io::empty()), Output::of);
        Live { child, stdin, out, err, shown, limit: self.limit, asked: self.asked }
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
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
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

/// A run that has ended. Its `Display` is the report that failed assertions show.
pub struct Run {
    pub status: i32, // 128 + the signal if one killed it
    pub stdout: String,
    pub stderr: String,
    shown: String,
    asked: String,
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Run { status, stdout, stderr, shown, asked } = self;
        let rule = "=".repeat(78);
        write!(f, "\n{rule}\ncommand: {shown}\nstatus: {status}\nserver: {asked}\n")?;
        write!(f, "--- stdout\n{stdout}\n--- stderr\n{stderr}\n{rule}")
    }
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
}

impl Live {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Writes to the standard input; that mb has ended already is no error here.
    pub fn send(&mut self, text: impl AsRef<[u8]>) {
        let _ = self.stdin.as_mut().expect("an open stdin").write_all(text.as_ref());
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits for a text on stdout behind the one waited for before.
    pub fn wait_for_stdout(&mut self, text: &str) {
        let found = self.out.find(text);
        assert!(found, "no {text:?} on stdout{}", self.report());
    }

    /// Waits for a text on stderr behind the one waited for before.
    pub fn wait_for_stderr(&mut self, text: &str) {
        let found = self.err.find(text);
        assert!(found, "no {text:?} on stderr{}", self.report());
    }

    /// Sends a signal to mb alone, as `kill` does.
    pub fn signal(&self, signal: i32) {
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Waits for mb's end and for that of its output.
    pub fn finish(mut self) -> Run {
        let ended = poll(self.limit, || {
            let ended = self.child.try_wait().unwrap().is_some();
            (ended && self.out.ended() && self.err.ended()).then_some(())
        });
        let run = self.report();
        assert!(ended.is_some(), "not ended within {:?}{run}", self.limit);
        run
    }

    /// What is known so far. The status of a running mb is -1.
    fn report(&mut self) -> Run {
        let status = self.child.try_wait().unwrap();
        let code = |end: std::process::ExitStatus| end.code().or(end.signal().map(|s| 128 + s));
        Run {
            status: status.and_then(code).unwrap_or(-1),
            stdout: self.out.text(),
            stderr: self.err.text(),
            shown: self.shown.clone(),
            asked: (self.asked)(),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    pub fn type_text(&mut self, text: &str) {
        self.master.as_mut().expect("a terminal").write_all(text.as_bytes()).unwrap();
    }

    pub fn key(&mut self, key: u8) {
        self.master.as_mut().expect("a terminal").write_all(&[key]).unwrap();
    }

    /// Waits for a text in the raw output behind the one waited for before.
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
        wait_until("the terminal is closed", || self.live.out.ended());
        self.master = None;
    }

    /// Waits for mb's end. All its output is in `stdout`.
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
        assert_eq!(unsafe { libc::ioctl(master.as_raw_fd(), request, at) }, 0);
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
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    poll(LIMIT, || condition().then_some(())).unwrap_or_else(|| panic!("waited in vain: {what}"));
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
