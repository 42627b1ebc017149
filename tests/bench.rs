//! What mb costs: printed, not asserted. A release build is worth measuring:
//! `cargo test --release --test bench -- --ignored --nocapture`

mod common;

use std::process::{Command, Stdio};

use common::*;
use serde_json::json;

/// CPU seconds, user and system, of all children so far that have been waited for.
fn children() -> f64 {
    let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The least, which other work on the machine disturbed least, and the median.
fn least_and_median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2])
}

#[test]
#[ignore = "a benchmark"]
fn a_stream_of_20000_small_chunks() {
    const CHUNKS: usize = 20_000;
    let chunk = |data: &str| format!("{:x}\r\ndata: {data}\n\n\r\n", data.len() + 8);
    let mut bytes = String::from(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    bytes += &chunk(&delta(json!({"content": "word "}))).repeat(CHUNKS);
    bytes += &[finish("stop"), usage(10, 0, 10), "[DONE]".into()].map(|it| chunk(&it)).concat();
    bytes += "0\r\n\r\n";
    let (mut ours, mut curls) = (Vec::new(), Vec::new());
    for _ in 0..7 {
        let server = Server::start([Reply::raw(&bytes), Reply::raw(&bytes)]);
        let before = children();
        let run = Place::new().run(&server, &["-"], "hello");
        assert_eq!(run.stdout.matches("word ").count(), CHUNKS, "{run}");
        ours.push((children() - before) * 1e6 / CHUNKS as f64);
        let before = children();
        let url = format!("{}/chat/completions", server.url());
        let mut curl = Command::new("curl");
        curl.args(["-sN", "-d", "{}", &url]).stdout(Stdio::piped());
        if curl.output().is_ok() {
            curls.push((children() - before) * 1e6 / CHUNKS as f64);
        }
    }
    let (least, median) = least_and_median(ours);
    println!("mb, its start included, a chunk: {least:.2} microseconds of CPU, median {median:.2}");
    if !curls.is_empty() {
        println!("which is {:.1} times what curl -N takes", median / least_and_median(curls).1);
    }
}
