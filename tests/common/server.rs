//! The scripted server: requests as they came, replies byte by byte.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Asked, LIMIT, poll, wait_until};

/// A request as it came. Header names are in lower case; a body that is no JSON is `Null`.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Value,
    pub bytes: usize,      // length of the body
    pub connection: usize, // its number, from 1
    pub at: Instant,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn messages(&self) -> &[Value] {
        let messages = self.body["messages"].as_array();
        messages.unwrap_or_else(|| panic!("a request without messages: {}", self.body))
    }

    pub fn roles(&self) -> Vec<&str> {
        self.messages().iter().map(|message| message["role"].as_str().unwrap_or("none")).collect()
    }

    fn read(from: &mut impl BufRead, connection: usize) -> Option<Request> {
        let mut line = || {
            let mut line = String::new();
            from.read_line(&mut line).ok().filter(|&n| n > 0)?;
            Some(line.trim_end().to_string())
        };
        let first = line()?;
        let (method, rest) = first.split_once(' ')?;
        let path = rest.strip_suffix(" HTTP/1.1")?.to_string();
        let mut headers = Vec::new();
        while let Some((name, value)) = line()?.split_once(':') {
            headers.push((name.to_lowercase(), value.trim().to_string()));
        }
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().unwrap())];
        from.read_exact(&mut body).ok()?;
        let (bytes, at) = (body.len(), Instant::now());
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Some(Request { method: method.into(), path, headers, body, bytes, connection, at })
    }
}

#[derive(Default)]
struct State {
    script: VecDeque<Reply>,
    models: Reply,
    requests: Vec<Request>,
    model_requests: Vec<Request>,
    tunnels: Vec<String>,
    connections: usize,
    ends: Vec<(usize, Instant)>,
    unscripted: usize,
}

impl State {
    /// Records a request and chooses the reply to it.
    fn answer(&mut self, request: Request) -> Reply {
        let is = |method, end| request.method == method && request.path.ends_with(end);
        if is("GET", "/models") {
            self.model_requests.push(request);
            return self.models.clone();
        }
        let reply = if !is("POST", "/chat/completions") {
            Reply::status(404, "no such path")
        } else if let Some(reply) = self.script.pop_front() {
            reply
        } else {
            self.unscripted += 1;
            Reply::status(418, "script is over") // mb would retry a 500 for 88 seconds
        };
        self.requests.push(request);
        reply
    }
}

/// A scripted HTTP/1.1 server. Each `POST …/chat/completions` takes the next reply of the script;
/// `GET …/models` has a reply of its own. It also is an HTTP and a SOCKS5 proxy, and then answers
/// in the target's place. A request beyond the script makes the test fail when it ends.
pub struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start(script: impl IntoIterator<Item = Reply>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (script, models) = (script.into_iter().collect(), Reply::status(404, "no models"));
        let state = Arc::new(Mutex::new(State { script, models, ..State::default() }));
        let server = Server { port, state: state.clone() };
        thread::spawn(move || {
            for (stream, connection) in listener.incoming().zip(1..) {
                let state = state.clone();
                state.lock().unwrap().connections = connection;
                thread::spawn(move || {
                    let _ = serve(stream.unwrap(), connection, &state);
                    state.lock().unwrap().ends.push((connection, Instant::now()));
                });
            }
        });
        server
    }

    /// Adds a reply to the script's end.
    pub fn push(&self, reply: Reply) {
        self.state.lock().unwrap().script.push_back(reply);
    }

    /// Sets the reply to each `GET …/models`; it is 404 before.
    pub fn set_models(&self, reply: Reply) {
        self.state.lock().unwrap().models = reply;
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address())
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// All requests but those for the models.
    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    pub fn model_requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().model_requests.clone()
    }

    /// The `host:port` targets that were asked of this server as a proxy.
    pub fn tunnels(&self) -> Vec<String> {
        self.state.lock().unwrap().tunnels.clone()
    }

    /// How many connections came, those for the models included.
    pub fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    /// Tells how many requests there were, for reports.
    pub fn asked(&self) -> Asked {
        let state = self.state.clone();
        Box::new(move || {
            let state = state.lock().unwrap();
            let (count, beyond) = (state.requests.len(), state.unscripted);
            format!("{count} requests, {beyond} of them beyond the script")
        })
    }

    #[track_caller]
    pub fn wait_for_requests(&self, count: usize) {
        wait_until(&format!("request {count} comes"), || self.requests().len() >= count);
    }

    /// Waits until a connection has ended, and says when it did.
    #[track_caller]
    pub fn wait_for_end(&self, connection: usize) -> Instant {
        let end =
            || self.state.lock().unwrap().ends.iter().find(|e| e.0 == connection).map(|e| e.1);
        poll(LIMIT, end).unwrap_or_else(|| panic!("connection {connection} has not ended"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !thread::panicking() {
            let wanted = state.requests.len() - state.unscripted;
            let came = state.requests.len();
            assert!(
                came == wanted,
                "wanted {wanted} requests, {came} came{}",
                listed(&state.requests)
            );
        } else if !state.requests.is_empty() {
            println!("the server's requests:{}", listed(&state.requests));
        }
    }
}

/// Requests with their last messages, for a failure's report.
fn listed(requests: &[Request]) -> String {
    let mut list = String::new();
    for (number, Request { method, path, connection, body, .. }) in (1..).zip(requests) {
        list += &format!("\n{number}. {method} {path} on connection {connection}");
        let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let left_out = messages.len().saturating_sub(3);
        list += &format!(", {} messages", messages.len());
        for message in &messages[left_out..] {
            let text = message.to_string();
            let cut: String = text.chars().take(500).collect();
            let dots = if cut.len() < text.len() { "..." } else { "" };
            list += &format!("\n   {cut}{dots}");
        }
    }
    list
}

/// Serves one connection until one side ends it; after the last reply that means: until mb does.
fn serve(mut stream: TcpStream, connection: usize, state: &Mutex<State>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    if reader.fill_buf()?.first() == Some(&5) {
        let target = socks(&mut reader, &mut stream)?;
        state.lock().unwrap().tunnels.push(target);
    }
    while let Some(request) = Request::read(&mut reader, connection) {
        if request.method == "CONNECT" {
            state.lock().unwrap().tunnels.push(request.path);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            continue;
        }
        let reply = state.lock().unwrap().answer(request);
        if !reply.play(&mut stream)? {
            break;
        }
    }
    Ok(())
}

/// The SOCKS5 greeting without a password, and a request for an IPv4 address or a name.
fn socks(reader: &mut impl Read, stream: &mut TcpStream) -> io::Result<String> {
    let mut take = |n: u8| -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; n.into()];
        reader.read_exact(&mut bytes).map(|()| bytes)
    };
    let methods = take(2)?[1];
    take(methods)?;
    stream.write_all(&[5, 0])?;
    let host = match take(4)?[3] {
        1 => take(4)?.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
        _ => take(1).and_then(|n| take(n[0])).map(|name| String::from_utf8(name).unwrap())?,
    };
    let port = take(2)?;
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
    Ok(format!("{host}:{}", u16::from_be_bytes([port[0], port[1]])))
}

/// Holds a reply back until the test opens it.
#[derive(Clone, Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    pub fn open(&self) {
        self.0.store(true, SeqCst);
    }

    pub fn is_open(&self) -> bool {
        self.0.load(SeqCst)
    }
}

#[derive(Clone)]
enum Step {
    Head, // status line and headers; recordings bring their own
    Send(Vec<u8>),
    Wait(Gate),
    Pause(u64),
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Framing {
    #[default]
    Length,
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum End {
    #[default]
    Keep,
    Close,
    Reset,
}

/// One reply: what is sent, with waits in between, how it is framed, and how it ends.
#[derive(Clone, Default)]
pub struct Reply {
    status: u16,
    headers: Vec<String>,
    framing: Framing,
    steps: Vec<Step>,
    segment: Option<usize>,
    unfinished: bool,
    end: End,
}

impl Reply {
    /// A streamed answer in a few deltas, then its finish reason, usage and `[DONE]`.
    pub fn text(text: &str) -> Reply {
        let chars: Vec<char> = text.chars().collect();
        let mut events = vec![delta(json!({"role": "assistant", "content": ""}))];
        for part in chars.chunks(chars.len().div_ceil(3).max(1)) {
            events.push(delta(json!({"content": part.iter().collect::<String>()})));
        }
        Reply::stream(events, "stop")
    }

    /// A streamed reply that calls tools, each an id, a name and the arguments' text.
    pub fn calls(calls: &[(&str, &str, &str)]) -> Reply {
        let mut events = vec![delta(json!({"role": "assistant", "content": null}))];
        for (index, (id, name, arguments)) in calls.iter().enumerate() {
            let call = json!({"index": index, "id": id, "type": "function",
                "function": {"name": name, "arguments": ""}});
            events.push(delta(json!({"tool_calls": [call]})));
            let call = json!({"index": index, "function": {"arguments": arguments}});
            events.push(delta(json!({"tool_calls": [call]})));
        }
        Reply::stream(events, "tool_calls")
    }

    fn stream(mut events: Vec<String>, finish_reason: &str) -> Reply {
        events.extend([finish(finish_reason), usage(10, 0, 5), "[DONE]".into()]);
        Reply::sse(&events.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// An event stream, chunked. A piece that begins with `{`, and `[DONE]`, becomes an event;
    /// any other is sent as it stands, so it brings its own line ends.
    pub fn sse(pieces: &[&str]) -> Reply {
        let (framing, steps) = (Framing::Chunked, vec![Step::Head]);
        let reply = Reply { status: 200, framing, steps, ..Reply::default() };
        reply.header("Content-Type", "text/event-stream").send(pieces)
    }

    /// A whole JSON body with its length.
    pub fn json(value: Value) -> Reply {
        Reply::status(200, &value.to_string()).header("Content-Type", "application/json")
    }

    /// A reply with this status and body, with its length and without a type.
    pub fn status(status: u16, body: &str) -> Reply {
        let steps = vec![Step::Head, Step::Send(body.into())];
        Reply { status, steps, ..Reply::default() }
    }

    /// These bytes and nothing else, status line included: for recordings.
    pub fn raw(bytes: impl AsRef<[u8]>) -> Reply {
        Reply { steps: vec![Step::Send(bytes.as_ref().into())], ..Reply::default() }
    }

    /// Never answers; the connection stays open.
    pub fn hang() -> Reply {
        Reply::default()
    }

    /// More of an event stream; see `sse`.
    pub fn send(mut self, pieces: &[&str]) -> Reply {
        for piece in pieces {
            let event = piece.starts_with('{') || *piece == "[DONE]";
            let text = if event { format!("data: {piece}\n\n") } else { piece.to_string() };
            self.steps.push(Step::Send(text.into()));
        }
        self
    }

    /// Waits, behind what was added so far, until the test opens the gate.
    pub fn wait(mut self, gate: &Gate) -> Reply {
        self.steps.push(Step::Wait(gate.clone()));
        self
    }

    /// Waits so many milliseconds, behind what was added so far.
    pub fn pause(mut self, ms: u64) -> Reply {
        self.steps.push(Step::Pause(ms));
        self
    }

    /// Sends nothing at all, not even the status, before the test opens the gate.
    pub fn held(mut self, gate: &Gate) -> Reply {
        self.steps.insert(0, Step::Wait(gate.clone()));
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Reply {
        self.headers.push(format!("{name}: {value}\r\n"));
        self
    }

    /// Other numbers in the usage chunk of `text` or `calls`.
    pub fn with_usage(mut self, prompt: u64, cached: u64, completion: u64) -> Reply {
        let at = self.steps.len().checked_sub(2).expect("a reply made by text or calls");
        self.steps[at] =
            Step::Send(format!("data: {}\n\n", usage(prompt, cached, completion)).into());
        self
    }

    /// Sends so many bytes at a time, a millisecond apart. Where mb is late some of them join: that
    /// makes the test easier, but never fail.
    pub fn split_every(self, bytes: usize) -> Reply {
        Reply { segment: Some(bytes), ..self }
    }

    /// Framed by a `Content-Length` in place of chunks.
    pub fn with_length(self) -> Reply {
        Reply { framing: Framing::Length, ..self }
    }

    /// Framed by `Connection: close` and the end of the connection.
    pub fn close(self) -> Reply {
        Reply { framing: Framing::UntilClose, end: End::Close, ..self }
    }

    /// The connection is closed behind the reply without a word.
    pub fn then_close(self) -> Reply {
        Reply { end: End::Close, ..self }
    }

    /// Broken off: the framing says that more is to come, and the connection is closed.
    pub fn cut(self) -> Reply {
        Reply { unfinished: true, end: End::Close, ..self }
    }

    /// Broken off by a connection reset.
    pub fn reset(self) -> Reply {
        Reply { unfinished: true, end: End::Reset, ..self }
    }

    /// Silent at its end: the framing says that more is to come, and the connection stays open.
    pub fn stall(self) -> Reply {
        Reply { unfinished: true, ..self }
    }

    fn head(&self) -> String {
        let sent = |step: &Step| if let Step::Send(bytes) = step { bytes.len() } else { 0 };
        let length: usize = self.steps.iter().map(sent).sum();
        let missing = if self.unfinished { 1000 } else { 0 };
        let framing = match self.framing {
            Framing::Length => format!("Content-Length: {}", length + missing),
            Framing::Chunked => "Transfer-Encoding: chunked".into(),
            Framing::UntilClose => "Connection: close".into(),
        };
        format!("HTTP/1.1 {} Scripted\r\n{}{framing}\r\n\r\n", self.status, self.headers.concat())
    }

    /// Sends the reply; says whether the connection goes on.
    fn play(&self, stream: &mut TcpStream) -> io::Result<bool> {
        let mut write = |bytes: &[u8]| -> io::Result<()> {
            for piece in bytes.chunks(self.segment.unwrap_or(usize::MAX)) {
                stream.write_all(piece)?;
                if self.segment.is_some() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            Ok(())
        };
        for step in &self.steps {
            match step {
                Step::Head => write(self.head().as_bytes())?,
                Step::Send(bytes) if self.framing == Framing::Chunked && !bytes.is_empty() => {
                    let size = format!("{:x}\r\n", bytes.len());
                    write(&[size.as_bytes(), bytes, b"\r\n"].concat())?;
                }
                Step::Send(bytes) => write(bytes)?,
                Step::Wait(gate) => wait_until("the gate is opened", || gate.0.load(SeqCst)),
                Step::Pause(ms) => thread::sleep(Duration::from_millis(*ms)),
            }
        }
        if self.framing == Framing::Chunked && !self.unfinished {
            write(b"0\r\n\r\n")?;
        }
        if self.end == End::Reset {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (at, size) = (&raw const linger, size_of::<libc::linger>() as u32);
            let fd = stream.as_raw_fd();
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, at.cast(), size) };
        }
        Ok(self.end == End::Keep)
    }
}

/// The text of a chunk with this delta.
pub fn delta(delta: Value) -> String {
    chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null)
}

/// The text of a chunk with a finish reason.
pub fn finish(reason: &str) -> String {
    chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null)
}

/// The text of a chunk with usage and no choices.
pub fn usage(prompt: u64, cached: u64, completion: u64) -> String {
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt + completion, "prompt_tokens_details": {"cached_tokens": cached}});
    chunk(json!([]), usage)
}

fn chunk(choices: Value, usage: Value) -> String {
    let mut chunk = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
        "model": "scripted", "choices": choices});
    if usage != Value::Null {
        chunk["usage"] = usage;
    }
    chunk.to_string()
}
