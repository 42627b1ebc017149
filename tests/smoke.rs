mod common;
use common::*;
use serde_json::json;
use std::time::{Duration, Instant};

const ECHO: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"echo hi"}"#);

#[test]
fn a_tool_call_is_run_and_its_result_sent_back() {
    let server = Server::start([Reply::calls(&[ECHO]), Reply::text("done")]);
    let place = Place::new();
    let run = place.run(&server, &["-"], "do it");
    assert_eq!(run.status, 0, "{run}");
    let second = &server.requests()[1];
    assert_eq!(second.messages()[3]["content"], "hi\n\n\nexit: 0");
    println!("{run}");
}

#[test]
fn endings() {
    let whole = Reply::text("é✓ done");
    for (reply, count) in [
        (whole.clone(), 1),
        (whole.clone().close(), 1),
        (whole.clone().with_length(), 1),
        (whole.clone().then_close(), 1),
        (whole.clone().split_every(1), 1),
        (whole.clone().split_every(7).with_length().close(), 1),
        (Reply::sse(&[&delta(json!({"content": "x"}))]).cut(), 2),
        (Reply::sse(&[&delta(json!({"content": "x"}))]).with_length().cut(), 2),
        (Reply::sse(&[&delta(json!({"content": "x"}))]).close(), 2),
        (Reply::sse(&[&delta(json!({"content": "x"}))]).reset(), 2),
        (Reply::json(json!({"choices":[{"message":{"role":"assistant","content":"é✓ done"}}]})), 1),
        (Reply::raw(std::fs::read("/work/shared/wire/xllama-02-chat.txt").unwrap()), 1),
        (Reply::raw(std::fs::read("/work/shared/wire/xllama-03-stream-usage.txt").unwrap()), 1),
        (
            Reply::raw(
                std::fs::read("/work/shared/wire/xllama-28-server-killed-midstream.txt").unwrap(),
            )
            .cut(),
            2,
        ),
    ] {
        let server = Server::start([reply, whole.clone()]);
        let place = Place::new();
        let run = place.run(&server, &["-"], "do it");
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(server.requests().len(), count, "{run}");
    }
}

#[test]
fn live_and_gate() {
    let gate = Gate::default();
    let server = Server::start([
        Reply::text("one").held(&gate),
        Reply::sse(&[&delta(json!({"content": "x"}))]).stall(),
    ]);
    let place = Place::new();
    let mut live = place.start(&server, &[]);
    live.send("hello\n");
    server.wait_for_requests(1);
    gate.open();
    live.wait_for_stdout("one");
    live.send("again\n");
    server.wait_for_requests(2);
    let start = Instant::now();
    live.signal(libc::SIGINT);
    live.wait_for_stderr("[interrupted]");
    assert!(start.elapsed() < Duration::from_secs(5));
    live.close_stdin();
    let run = live.finish();
    assert_eq!(run.status, 0, "{run}");
    server.wait_for_end(1);
}

#[test]
fn on_a_terminal() {
    let server = Server::start([Reply::text("one")]);
    let place = Place::new();
    let mut terminal = place.terminal(&server, &[]);
    terminal.wait_for("> ");
    terminal.type_text("half");
    terminal.key(CTRL_C);
    terminal.wait_for("> ");
    terminal.type_text("hello\r");
    terminal.wait_for("one");
    terminal.wait_for("> ");
    println!("{:?} {:?}", terminal.raw(), terminal.screen());
    terminal.hang_up();
    let run = terminal.finish();
    assert_eq!(run.status, 129, "{run}");
}

#[test]
fn kills() {
    let call =
        ("c1", "shell_exec", r#"{"command":"setsid sleep 300.0123 > /dev/null 2>&1 & echo hi"}"#);
    let server = Server::start([Reply::calls(&[call]), Reply::text("done")]);
    let place = Place::new();
    let run = place.run(&server, &["-"], "do it");
    assert_eq!(run.status, 0, "{run}");
    let pids = processes_with("sleep 300.0123");
    assert_eq!(pids.len(), 1);
    assert!(alive(pids[0]));
    drop(place);
    wait_until("it is killed", || !alive(pids[0]));
}

#[test]
fn outputs() {
    let server = Server::start([Reply::text("done")]);
    let place = Place::new();
    let run = place.mb(&server, &["-"]).stdin("x").stdout_unread().run();
    println!("{run}");
    server.push(Reply::text("done"));
    let run = place.mb(&server, &["-"]).stdin("x").stdout_closed().run();
    println!("{run}");
    server.push(Reply::text("done"));
    let run = place
        .mb(&server, &["-"])
        .stdin("x")
        .stdout(std::fs::File::create("/dev/full").unwrap())
        .run();
    println!("{run}");
    let run = place.mb(&server, &["/dev/null/x"]).start().finish();
    println!("{run}");
}

#[test]
#[should_panic(expected = "beyond the script")]
fn beyond() {
    let server = Server::start([]);
    let place = Place::new();
    let run = place.run(&server, &["-"], "do it");
    assert_eq!(run.status, 1, "{run}");
}

#[test]
fn not_there() {
    let run = Place::new().mb_alone(&["-", "timeout=1"]).stdin("x").limit(3).start();
    run.signal(libc::SIGKILL);
    let run = run.finish();
    assert_eq!(run.status, 137, "{run}");
    assert_eq!(screen("ab\rc\x1b[K\x1b[1;31mred\x1b[0m\r\nline2\r\x1b[2Kx"), "cred\nx");
}

#[test]
fn segments() {
    use std::io::{Read, Write};
    let server = Server::start([Reply::text("é✓").split_every(1)]);
    let mut s = std::net::TcpStream::connect(server.address()).unwrap();
    s.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    let mut sizes = vec![];
    let mut all = vec![];
    while !all.ends_with(b"\r\n0\r\n\r\n") {
        let mut buf = [0; 4096];
        let n = s.read(&mut buf).unwrap();
        all.extend_from_slice(&buf[..n]);
        sizes.push(n);
    }
    println!("{} reads, max {:?}", sizes.len(), sizes.iter().max());
}
