//! A demonstration without network or key: a whole turn as a user sees it.
//!
//! `cargo test --test demo -- --nocapture` shows it while it runs.

mod common;

use std::io::{Read, Write, pipe, stdout};

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

#[test]
fn a_whole_turn_as_a_user_sees_it() {
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
    let run = live.finish();
    println!();

    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    assert_eq!(place.read("poems/haiku.txt"), haiku, "{run}");
    let text = screen(&String::from_utf8(shown).unwrap().replace('\n', "\r\n"));
    let readme = include_str!("../README.md");
    let block = format!("$ mb prompt.txt\n{text}```");
    assert!(readme.contains(&block), "the README shows another turn than {block}");
    let mut rest = text.as_str();
    for part in [
        "...requesting...\n",
        "--- reasoning start ---\nThe user wants a haiku",
        "--- reasoning end ---\nLet me look around first.\n",
        "[tool call: shell_exec({\"command\":\"ls; cat notes.txt\"})]\n",
        "[tool result: shell_exec]\nmodel.cfg\nnotes.txt\nprompt.txt\nremember the milk\n",
        "exit: 0\n",
        "...requesting...\n",
        "Now I write the poem.\n[tool call: write_file({",
        "[tool result: write_file]\nwrote ",
        "...requesting...\n",
        "Done: poems/haiku.txt",
        "\n[tokens: 3932 prompt (2512 cached, 1420 uncached) + 159 completion | \
            context: 1420/200000 (0.7%)]\n",
    ] {
        let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?} in {rest:?}"));
        rest = &rest[at + part.len()..];
    }
}
