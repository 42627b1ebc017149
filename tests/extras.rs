//! The shell tools in `extras`, each in dash and in busybox's shell, against a scripted server.
//! They find no other programs than those that `shells` links.

#[macro_use]
mod common;

use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use common::{Place, find, lacks, wait_until};
use serde_json::{Value, json};

const TRICKY: &str = "it's \"so\" \\ \\n \\\"; $HOME `id` %41 é€😀\nline 2\tend";

// ---- The tools

fn extras() -> PathBuf {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/extras");
    std::env::var("EXTRAS_DIR").unwrap_or(own.into()).into()
}

fn program(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("{name} is not in PATH"))
}

struct Shell {
    name: &'static str,
    place: Place,
    timeout: &'static str,
    key: &'static str,
}

/// The two shells. One that cannot be run here is skipped, and that is said.
#[track_caller]
fn shells() -> Vec<Shell> {
    let names = ["dash", "busybox"].into_iter().filter(|name| !lacks(&[name, "curl", "jq"]));
    names.map(shell).collect()
}

fn shell(name: &'static str) -> Shell {
    let shell = Shell { name, place: Place::new(), timeout: "23", key: "key-1" };
    symlink(extras(), shell.place.path("extras")).unwrap();
    fs::create_dir(shell.place.path("bin")).unwrap();
    for tool in ["cut", "dirname", "head", "readlink", "sed", "tr"] {
        symlink(program(if name == "busybox" { name } else { tool }), shell.bin(tool)).unwrap();
    }
    symlink(program("jq"), shell.bin("jq")).unwrap();
    let spy = "#!/bin/sh\nprintf '%s\\n' \"$@\" end >>spied\nexec";
    fs::write(shell.bin("curl"), format!("{spy} {:?} \"$@\"\n", program("curl"))).unwrap();
    fs::set_permissions(shell.bin("curl"), fs::Permissions::from_mode(0o755)).unwrap();
    shell
}

impl Shell {
    fn bin(&self, tool: &str) -> PathBuf {
        self.place.path("bin").join(tool)
    }

    /// Runs a tool, written `tool|argument|argument`, that takes this server for any of the three.
    fn run(&self, server: &Server, call: &str) -> (i32, String, String) {
        let mut words = call.split('|');
        let mut command = Command::new(program(self.name));
        command.args((self.name == "busybox").then_some("sh"));
        command.arg(PathBuf::from("extras").join(words.next().unwrap())).args(words);
        command.env_clear().env("PATH", self.place.path("bin")).current_dir(self.place.work());
        command.env("HOME", self.place.home());
        for name in ["EXA_MCP_ENDPOINT", "CONTEXT7_MCP_ENDPOINT", "WTTRAPI"] {
            command.env(name, &server.url);
        }
        command.env("MCP_TIMEOUT", self.timeout).env("WEATHER_TIMEOUT", self.timeout);
        command.env("EXA_API_KEY", self.key).env("CONTEXT7_API_KEY", self.key);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        wait_until(&format!("{call} ends"), || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let spied = fs::read_to_string(self.place.path("spied")).unwrap_or_default();
        let timeout = format!("--max-time\n{}\n", self.timeout);
        assert!(spied.split_terminator("end\n").all(|call| call.contains(&timeout)), "{spied}");
        assert!(!spied.contains("key-1"), "others can see the key: {spied}");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn prints(&self, server: &Server, call: &str, stdout: &str, stderr: &str) {
        assert_eq!(self.run(server, call), (0, stdout.into(), stderr.into()), "{call}");
    }

    /// Prints one line on standard error that begins with the tool's name, and nothing else.
    fn fails(&self, server: &Server, call: &str, status: i32, message: &str) {
        let (code, stdout, stderr) = self.run(server, call);
        let tool = call.split('|').next().unwrap().rsplit('/').next().unwrap();
        let one_line = stderr.starts_with(&format!("{tool}: ")) && stderr.lines().count() == 1;
        let fits = one_line && stderr.contains(message) && !stderr.contains("key-1");
        assert!(
            fits && code == status && stdout.is_empty(),
            "{call}: status {status} and one line with {message:?} on stderr alone, without the key\n\
            came: {code}, stdout {stdout:?}, stderr {stderr:?}"
        );
    }
}

// ---- The server

const WELCOME: &str = r#"{"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-03-26"}}"#;
const OPEN: &str = "\0"; // at a reply's end: the connection stays open

/// A request as it came: its head, and the JSON behind it.
struct Request(String, Value);

impl Request {
    fn read(from: &mut impl BufRead) -> Request {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(from.read_line(&mut head).unwrap() > 0, "half a request");
        }
        let mut request = Request(head, Value::Null);
        let mut body = vec![0; request.header("Content-Length").unwrap_or("0").parse().unwrap()];
        from.read_exact(&mut body).unwrap();
        request.1 = serde_json::from_slice(&body).unwrap_or_default();
        request
    }

    fn target(&self) -> &str {
        self.0.split(' ').nth(1).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

struct Server {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// Answers each connection with the next of these replies, and then no more.
fn serve<const N: usize>(replies: [String; N]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = Server { url, requests: Arc::default() };
    let requests = server.requests.clone();
    thread::spawn(move || {
        for reply in replies {
            let mut stream = listener.accept().unwrap().0;
            let request = Request::read(&mut BufReader::new(&stream));
            requests.lock().unwrap().push(request);
            stream.write_all(reply.trim_end_matches(OPEN).as_bytes()).unwrap();
            if reply.ends_with(OPEN) {
                let _ = stream.read(&mut [0]); // until the client ends it
            }
        }
    });
    server
}

fn http(status: &str, body: impl Display) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n{body}")
}

fn ok(body: impl Display) -> String {
    http("200 OK", body)
}

fn says(id: u32, text: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
}

/// A session without an id, in JSON, that goes on with this reply, and perhaps another.
fn session(first: String, second: &str) -> Server {
    serve([ok(WELCOME), http("202 Accepted", ""), first, second.into()])
}

// ---- MCP

#[test]
fn websearch_begins_a_session_and_prints_the_text() {
    for shell in shells() {
        let text = "# One\n\n\"quoted\" \\n é\n";
        let server = session(ok(says(2, text)), "");
        shell.prints(&server, &format!("websearch|{TRICKY}"), text, "");
        let requests = server.requests.lock().unwrap();
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "mb-extras", "version": "1"}});
        let call =
            json!({"name": "web_search_exa", "arguments": {"query": TRICKY, "numResults": 5}});
        let bodies = [
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}),
        ];
        let versions = [None, Some("2025-03-26"), Some("2025-03-26")];
        for (n, request) in requests.iter().enumerate() {
            assert_eq!((request.target(), &request.1), ("/?api_key=key-1", &bodies[n]));
            assert_eq!(request.header("Content-Type"), Some("application/json"));
            assert_eq!(request.header("Accept"), Some("application/json, text/event-stream"));
            assert_eq!(request.header("Mcp-Session-Id"), None);
            assert_eq!(request.header("MCP-Protocol-Version"), versions[n]);
        }
        assert_eq!(requests.len(), 3);
    }
}

#[test]
fn events_are_understood_and_the_session_is_kept() {
    let parts = json!([{"type": "text", "text": "first"}, {"type": "image", "data": "AA=="},
        {"type": "text", "text": "data: second"}]);
    let parts = serde_json::to_string_pretty(&parts).unwrap().replace('\n', "\r\ndata: ");
    let events = format!(
        ": ping \"1\"\r\n\r\nretry: 9\r\nid:1\r\n\
        data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{}}}}\r\n\r\n\
        event: message\r\ndata: {{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}}\r\n\r\n\
        data:{{\"id\":2,\r\ndata: \"result\":{{\"content\":\r\ndata: {parts}}}}}\r\n\r\n"
    );
    for (shell, name) in shells().into_iter().zip(["Mcp-Session-Id", "mcp-session-id"]) {
        let welcome = format!("id: 0\ndata:\n\nevent: message\ndata: {WELCOME}\n\n");
        let welcome = http(&format!("200 OK\r\n{name}: s-1"), welcome);
        let server = serve([welcome, http("202 Accepted", ""), ok(&events)]);
        let shell = Shell { key: "", ..shell };
        shell.prints(&server, "websearch|x|10", "first\ndata: second\n", "");
        let requests = server.requests.lock().unwrap();
        assert_eq!(requests[2].1["params"]["arguments"]["numResults"], 10);
        assert!(requests.iter().all(|request| request.target() == "/"));
        let ids = requests.iter().map(|request| request.header("Mcp-Session-Id"));
        assert_eq!(ids.collect::<Vec<_>>(), [None, Some("s-1"), Some("s-1")]);
    }
}

#[test]
fn context7_resolves_and_queries() {
    let list = "A Context7 ID: (format: /org/project)\n\n\
        - Title: A\n- Context7-compatible library ID: /a/b.js\n----\n\
        - Title: C\n- Context7-compatible library ID: /c/d\n";
    let params = |name: &str, arguments| json!({"name": name, "arguments": arguments});
    let resolve =
        |topic: &str| params("resolve-library-id", json!({"libraryName": TRICKY, "query": topic}));
    let query = || params("query-docs", json!({"libraryId": "/a/b.js", "query": TRICKY}));
    for shell in shells() {
        let runs = [
            ("resolve|X", list, vec![resolve(TRICKY)], (0, list, "")),
            ("resolve|X|y", list, vec![resolve("y")], (0, list, "")),
            ("query|/a/b.js|X", "use", vec![query()], (0, "use\n", "")),
            ("docs|X|X", list, vec![resolve(TRICKY), query()], (0, "use it\n", "/a/b.js\n")),
            (
                "docs|X|y",
                "None",
                vec![resolve("y")],
                (1, "", "context7: no library has this name\n"),
            ),
        ];
        for (call, reply, params, (status, stdout, stderr)) in runs {
            let server = session(ok(says(2, reply)), &ok(says(3, "use it")));
            let ended = shell.run(&server, &format!("context7|{call}").replace('X', TRICKY));
            assert_eq!(ended, (status, stdout.into(), stderr.into()), "{call}");
            let requests = server.requests.lock().unwrap();
            let has_key = |it: &Request| it.header("X-Context7-API-Key") == Some("key-1");
            assert!(requests.iter().all(has_key), "{call}");
            let asked = requests.iter().skip(2).map(|request| request.1["params"].clone());
            assert_eq!(asked.collect::<Vec<_>>(), params, "{call}");
        }
    }
}

#[test]
fn what_goes_wrong_is_one_line() {
    let error = json!({"id": 2, "error": {"code": -1, "message": "quota\nis \"over\""}});
    let limit = json!({"id": null, "error": {"code": -1, "message": "too many"}});
    let denied = json!({"id": 2, "result": {"isError": true, "content": [{"text": "bad\nkéy"}]}});
    let begun = [
        (ok(error), "quota is \"over\""),
        (http("429 Too Many", limit), "too many"),
        (ok(denied), "bad kéy"),
        (ok(json!({"id": 2, "result": {"content": []}})), "no text"),
        (ok(says(2, "")), "no text"),
    ];
    let first = [
        (http("401 Who", "{\"error\": \"no such key\"}"), "no such key"),
        (ok(says(3, "the answer to another request")), "no answer"),
        (ok("data: {\"id\": 1, \"resu"), "no answer"),
        (ok(""), "no answer: HTTP 200"),
        (http("500 Oops", "<html>\n<p>sorry\n</html>\n"), "no answer: HTTP 500"),
        (http("404 Not Found", "{\"message\": \"gone\"}"), "no answer: HTTP 404"),
    ];
    for shell in shells() {
        let check = |call, server, message| shell.fails(&server, call, 1, message);
        for (reply, message) in &begun {
            check("websearch|x", session(reply.clone(), ""), message);
        }
        for (reply, message) in &first {
            check("websearch|x", serve([reply.clone()]), message);
        }
        check("websearch|x", serve([]), "onnect");
        check("weather", serve([]), "onnect");
        check("weather", serve([http("404 Not Found", "no such\nplace\n")]), "no such place");
        check("weather", serve([http("500 Oops", "")]), "500");
        check("weather", serve([ok("")]), "empty");
        check("weather|--json", serve([ok("Sorry\nthe limit")]), "no JSON");
    }
}

#[test]
fn the_timeout_ends_what_stays_open() {
    let (names, half) = (shells().into_iter().map(|it| it.name), || ok("data: {\"id\"") + OPEN);
    thread::scope(|scope| {
        for name in names {
            let times_out = move |server: Server, call| {
                let shell = Shell { timeout: "1", ..shell(name) };
                scope.spawn(move || shell.fails(&server, call, 1, "timed out"));
            };
            times_out(serve([OPEN.into()]), "weather");
            times_out(serve([ok("sun\n") + OPEN]), "weather");
            times_out(serve([OPEN.into()]), "websearch|x");
            times_out(session(half(), ""), "websearch|x");
        }
    });
}

#[test]
fn what_came_before_the_timeout_counts() {
    let names = shells().into_iter().map(|it| it.name);
    thread::scope(|scope| {
        for name in names {
            let shell = Shell { timeout: "5", ..shell(name) }; // ample for what comes at once
            let whole = session(ok(format!("data: {}\n\n", says(2, "found"))) + OPEN, "");
            scope.spawn(move || shell.prints(&whole, "websearch|x", "found\n", ""));
        }
    });
}

// ---- The weather

/// Percent-encoding, and `+` for a space, undone.
fn decode(text: &str) -> String {
    let mut parts = text.split('%').map(|part| part.replace('+', " ").into_bytes());
    let mut decoded = parts.next().unwrap();
    for part in parts {
        let digits = std::str::from_utf8(&part[..2]).unwrap();
        decoded.push(u8::from_str_radix(digits, 16).unwrap());
        decoded.extend(&part[2..]);
    }
    String::from_utf8(decoded).unwrap()
}

#[test]
fn weather_asks_for_what_its_options_say() {
    let calls = [
        ("weather", "/"),
        ("weather|London", "/London"),
        ("weather|-f|3|New York", "/New York?format=3"),
        ("weather|-f|%l: %c %t\\n[é]|Paris", "/Paris?format=%l: %c %t\\n[é]"),
        ("weather|-u|u|-L|de|Berlin", "/Berlin?u&lang=de"),
        ("weather|-0|-u|m|-q|-A|-l|muc", "/muc?0mqA"),
        ("weather|@example.org|--lang|fr|-1", "/@example.org?1&lang=fr"),
        ("weather|--quiet|-2|--units|M", "/?q2M"),
        ("weather|~Eiffel tower", "/~Eiffel tower"),
        ("weather|Zürich 50% #1?[a]", "/Zürich 50% #1?[a]"),
        ("weather|--location|-78,106|--format|%t+%w&x=1", "/-78,106?format=%t+%w&x=1"),
        ("weather|-j|Tokyo", "/Tokyo?format=j1"),
    ];
    for shell in shells() {
        for (call, target) in calls {
            let server = serve([ok("{\"sun\": \"\\u001b[1m \\n é\"}\n")]);
            let pretty = call.contains("-j");
            let [open, close] = if pretty { ["{\n  ", "\n}\n"] } else { ["{", "}\n"] };
            let report = format!("{open}\"sun\": \"\\u001b[1m \\n é\"{close}");
            shell.prints(&server, call, &report, "");
            let requests = server.requests.lock().unwrap();
            assert_eq!(decode(requests[0].target()), target);
            let question_marks = requests[0].target().matches('?').count();
            assert_eq!(question_marks, usize::from(call.contains("|-")), "{call}");
        }
    }
}

// ---- All three

#[test]
fn help_is_printed_and_bad_usage_is_one_line() {
    let help =
        "websearch|-h websearch|--help context7|-h context7|--help weather|-h weather|x|--help";
    let bad = "websearch websearch| websearch|x|five websearch|x|-1 websearch|x|1|2 context7 \
        context7|resolve context7|query|/a context7|docs|a context7|docs|a|b|c context7|find|a|b \
        weather|-z weather|London|-f weather|-u|x weather|New|York";
    for shell in shells() {
        fs::remove_file(shell.bin("curl")).unwrap();
        fs::remove_file(shell.bin("jq")).unwrap();
        for call in help.split_whitespace() {
            let (status, stdout, stderr) = shell.run(&serve([]), call);
            let usage = format!("usage: {} ", call.split('|').next().unwrap());
            assert!(stdout.starts_with(&usage), "{call}: {stdout:?}");
            assert_eq!((status, stderr.as_str()), (0, ""), "{call}");
        }
        for call in bad.split_whitespace() {
            shell.fails(&serve([]), call, 2, "");
        }
    }
}

#[test]
fn a_missing_program_is_named() {
    let calls = ["websearch|x", "context7|docs|a|b", "weather|-j"];
    for shell in shells() {
        fs::remove_file(shell.bin("jq")).unwrap();
        for call in calls {
            shell.fails(&serve([ok("{}")]), call, 1, "jq is missing");
        }
        shell.prints(&serve([ok("sun")]), "weather", "sun\n", "");
        fs::remove_file(shell.bin("curl")).unwrap();
        for call in calls {
            shell.fails(&serve([]), call, 1, "curl is missing");
        }
    }
}

#[test]
fn the_tools_can_be_run_and_called_by_a_whole_path_and_by_a_link() {
    for shell in shells() {
        for (tool, call) in [("websearch", ""), ("context7", ""), ("weather", "|-z")] {
            let file = extras().join(tool);
            let mode = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "{file:?}");
            symlink(&file, shell.bin(tool)).unwrap();
            for path in [file, shell.bin(tool)] {
                shell.fails(&serve([]), &format!("{}{call}", path.display()), 2, "");
            }
        }
    }
}
