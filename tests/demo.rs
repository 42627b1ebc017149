//! A demonstration without network or key: a whole turn as a user sees it.
//!
//! `cargo test --test demo -- --nocapture` shows it while it runs.

#[macro_use]
mod common;

use std::io::{Read, Write, pipe, stdout};
use std::sync::LazyLock;

use common::*;
use serde_json::json;

/// Adds a text to a reply, word by word, as models write.
fn write_slowly(reply: Reply, key: &str, text: &str) -> Reply {
    let words = text.split_inclusive(' ');
    words.fold(reply, |reply, word| reply.send(&[&delta(json!({key: word}))]).pause(20))
}

/// Adds a tool call and the reply's end.
fn call(reply: Reply, id: &str, name: &str, arguments: &str) -> Reply {
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"index": 0, "id": id, "type": "function", "function": function});
    reply.send(&[&delta(json!({"tool_calls": [call]})), &finish("tool_calls")])
}

/// The turn that all tests here look at: its transcript, and its lines as a terminal would show them.
static TURN: LazyLock<(String, Vec<String>)> = LazyLock::new(turn);

/// Runs it, and shows it while it runs.
fn turn() -> (String, Vec<String>) {
    let begin = || Reply::sse(&[": a scripted model\n\n"]).pause(300);
    let look = write_slowly(
        begin(),
        "reasoning_content",
        "The user wants a haiku about this folder in a file. First I have to know what is in it.",
    );
    let look = write_slowly(look, "content", "Let me look around first.");
    let look = call(look, "c1", "shell_exec", r#"{"command":"ls; cat notes.txt"}"#);
    let haiku = "Two small tools at hand,\none loop that asks and listens:\nthe file is written.\n";
    let arguments = json!({"path": "poems/haiku.txt", "content": haiku}).to_string();
    let write = write_slowly(begin(), "content", "A folder with one note. Now I write the poem.");
    let write = call(write, "c2", "write_file", &arguments);
    let end = "Done: poems/haiku.txt holds a haiku about your folder and its only note.";
    let end = write_slowly(begin(), "content", end).send(&[&finish("stop")]);
    let server = Server::start([
        look.send(&[&usage(1210, 0, 61), "[DONE]"]),
        write.send(&[&usage(1302, 1210, 74), "[DONE]"]),
        end.send(&[&usage(1420, 1302, 24), "[DONE]"]),
    ]);
    let place = Place::new();
    place.write("notes.txt", "remember the milk\n");
    place.write("prompt.txt", "Write a haiku about this folder into poems/haiku.txt.");

    let args = ["prompt.txt", "color=always"];
    println!("\n\nA turn of mb, with a scripted model in place of a real one\n");
    println!("$ cat prompt.txt\n{}\n$ mb {}", place.read("prompt.txt"), args.join(" "));
    let (mut reader, writer) = pipe().unwrap();
    let live = place.mb(&server, &args).stdout(writer).start();
    let (mut shown, mut block) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = reader.read(&mut block) {
        print!("{}", String::from_utf8_lossy(&block[..length])); // as it comes
        stdout().flush().unwrap();
        shown.extend_from_slice(&block[..length]);
    }
    println!();
    let (run, shown) = (live.finish(), String::from_utf8_lossy(&shown));
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "exit status and stderr{run}");
    let written = std::fs::read_to_string(place.path("poems/haiku.txt")).unwrap_or_default();
    assert_eq!(written, haiku, "the file, of which the turn shows\n{shown}{run}");
    (run.to_string(), lines(&screen(&shown.replace('\n', "\r\n"))))
}

fn lines(text: &str) -> Vec<String> {
    text.trim_end().lines().map(String::from).collect()
}

/// The same turn, as the README has it.
fn readme() -> Vec<String> {
    let start = include_str!("../README.md").split_once("$ mb prompt.txt\n").expect("the turn").1;
    lines(start.split_once("```").expect("the turn's end").0)
}

/// Takes out the lines from one that begins like this to one that begins like that.
fn take_out(lines: &mut Vec<String>, from: &str, to: &str) -> Vec<String> {
    let Some(start) = lines.iter().position(|line| line.starts_with(from)) else { return vec![] };
    let rest = &lines[start..];
    let count = rest.iter().position(|line| line.starts_with(to)).map_or(rest.len(), |at| at + 1);
    lines.drain(start..start + count).collect()
}

fn reasoning(lines: &mut Vec<String>) -> Vec<String> {
    take_out(lines, "--- reasoning start", "--- reasoning end")
}

fn token_line(lines: &mut Vec<String>) -> Vec<String> {
    take_out(lines, "[tokens: ", "[tokens: ")
}

/// The lines, and where the first one is that differs.
fn compare(run: &str, came: &[String], wanted: &[String]) {
    let whole = came.join("\n");
    for (number, wanted) in (1..).zip(wanted) {
        let line = came.get(number - 1).map_or("(the end)", String::as_str);
        assert_eq!(
            line, wanted,
            "line {number} of what the README has, too; this came:\n{whole}{run}"
        );
    }
    assert_eq!(
        came.len(),
        wanted.len(),
        "as many lines as the README has; this came:\n{whole}{run}"
    );
}

#[test]
fn a_whole_turn_as_a_user_sees_it() {
    let ((run, mut came), mut wanted) = (TURN.clone(), readme());
    for lines in [&mut came, &mut wanted] {
        reasoning(lines);
        token_line(lines);
    }
    assert!(wanted.len() > 15, "the README shows less: {wanted:?}");
    compare(&run, &came, &wanted);
}

mod needs_reasoning {
    use super::*;

    #[test]
    fn the_reasoning_of_a_whole_turn() {
        let ((run, mut came), mut wanted) = (TURN.clone(), readme());
        let wanted = reasoning(&mut wanted);
        assert_eq!(wanted.len(), 3, "in the README");
        compare(&run, &reasoning(&mut came), &wanted);
    }
}

mod needs_token_line {
    use super::*;

    #[test]
    fn the_token_line_of_a_whole_turn() {
        let ((run, mut came), mut wanted) = (TURN.clone(), readme());
        let sums = "3932 prompt (2512 cached, 1420 uncached) + 159 completion";
        let wanted = token_line(&mut wanted);
        assert_eq!(
            wanted,
            [format!("[tokens: {sums} | context: 1420/200000 (0.7%)]")],
            "the README"
        );
        assert_eq!(came.last(), wanted.last(), "the last line{run}");
        compare(&run, &token_line(&mut came), &wanted);
    }
}
