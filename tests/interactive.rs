//! The prompt, its lines, and the offer to compact (§10 of the contract).

#[macro_use]
mod common;

use std::time::{Duration, Instant};
use std::{fs, thread};

use common::*;
use serde_json::json;

/// Types these lines into a pipe; returns the prompts that were sent, each of them answered.
fn prompts(input: impl AsRef<[u8]>, count: usize) -> Vec<String> {
    let (server, place) = (Server::start((0..count).map(|_| Reply::text("done"))), Place::new());
    let run = place.mb(&server, &[]).stdin(input).run();
    assert_eq!(run.status, 0, "{run}");
    let requests = server.requests();
    assert_eq!(requests.len(), count, "{run}");
    let last = |r: &Request| r.messages().last().unwrap()["content"].as_str().unwrap().to_string();
    requests.iter().map(last).collect()
}

// ---- Lines

#[test]
fn each_line_is_a_prompt() {
    assert_eq!(prompts("one\ntwo\n", 2), ["one", "two"]);
    assert_eq!(
        prompts("gr\u{fc}\u{df}e \u{1f389} #1 = \"a\"\n", 1),
        ["gr\u{fc}\u{df}e \u{1f389} #1 = \"a\""]
    );
}

#[test]
fn a_line_that_ends_in_a_backslash_goes_on_in_the_next() {
    for (input, expected) in [
        ("one\\\ntwo\nthree\n", vec!["one\ntwo", "three"]),
        ("one\\\ntwo\\\nthree\n", vec!["one\ntwo\nthree"]),
        ("one\\\n\ntwo\n", vec!["one\n", "two"]),
        ("a\\b\n", vec!["a\\b"]),
        ("one\\\n/help\n", vec!["one\n/help"]),
        ("one\\\n!echo hi\n", vec!["one\n!echo hi"]),
    ] {
        assert_eq!(prompts(input, expected.len()), expected, "{input:?}");
    }
}

#[test]
fn the_end_of_input_ends_a_continued_line_too() {
    for input in ["one\\", "one\\\n"] {
        assert_eq!(prompts(input, 1)[0].trim_end(), "one", "{input:?}");
    }
}

#[test]
fn blank_lines_are_ignored() {
    assert_eq!(prompts("\n  \n\t\nhello\n\n", 1), ["hello"]);
    assert_eq!(prompts("\n\n", 0).len(), 0);
}

#[test]
fn the_last_line_is_a_prompt_without_a_newline_too() {
    assert_eq!(prompts("hi", 1), ["hi"]);
    assert_eq!(prompts("one\ntwo", 2), ["one", "two"]);
}

#[test]
fn invalid_utf8_on_standard_input_is_no_crash() {
    let sent = prompts(b"a\xff\xfeb\ntwo\xc3\n", 2);
    assert!(sent[0].starts_with('a') && sent[0].ends_with('b'), "{sent:?}");
    assert!(sent[1].starts_with("two"), "{sent:?}");
}

#[test]
fn no_input_at_all_is_a_quiet_end() {
    let (server, place) = (Server::start([]), Place::new());
    let run = place.run(&server, &[], "");
    assert_eq!((run.status, run.stdout.as_str(), run.stderr.as_str()), (0, "", ""), "{run}");
    assert!(!place.sessions().join(place.project_id() + ".json").exists(), "{run}");
}

// ---- What goes with a part that a port may lack

mod needs_sessions {
    use super::*;

    mod needs_commands {
        use super::*;

        #[test]
        fn the_end_of_input_saves_and_leaves_as_quit_does() {
            for end in ["", "/quit\n", "/quit\nnever sent\n!touch never\n"] {
                let (server, place) = (Server::start([Reply::text("done")]), Place::new());
                let run = place.run(&server, &[], &format!("hello\n{end}"));
                assert_eq!(run.status, 0, "{run}");
                assert_eq!(server.requests().len(), 1, "{run}");
                assert!(!place.path("never").exists(), "{run}");
                assert_eq!(place.session()["messages"].as_array().unwrap().len(), 3, "{run}");
            }
        }
    }
}

mod needs_terminal {
    use super::*;

    // ---- On a terminal

    #[test]
    fn the_prompt_is_shown_on_a_terminal_only() {
        let server = Server::start([Reply::text("one"), Reply::text("two")]);
        let place = Place::new();
        let run = place.run(&server, &[], "hello\n!echo hi\n");
        assert!(!run.stdout.contains("> "), "{run}");
        assert!(!run.stderr.contains("> "), "{run}");
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text("hello\r");
        terminal.wait_for("two");
        terminal.wait_for("\n> ");
        terminal.key(CTRL_D);
        let run = terminal.finish();
        assert_eq!(run.status, 0, "{run}");
    }

    #[test]
    fn on_a_terminal_the_first_line_names_version_model_and_endpoint() {
        let (server, place) = (Server::start([]), Place::new());
        place.config(&server, "model=some/model");
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        let screen = terminal.screen();
        let first = screen.lines().next().unwrap();
        for part in ["mb ", ".", "some/model", &server.url()] {
            assert!(first.contains(part), "no {part} in {first:?}");
        }
    }

    #[test]
    fn a_line_is_continued_on_a_terminal_too() {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text("one\\\r");
        terminal.wait_for("> "); // so that the next line is no part of a pasted block
        terminal.type_text("two\r");
        terminal.wait_for("done");
        assert_eq!(server.requests()[0].messages()[1]["content"], "one\ntwo");
    }

    #[test]
    fn a_line_typed_while_a_turn_runs_is_the_next_prompt() {
        let gate = Gate::default();
        let server =
            Server::start([Reply::text("first answer").held(&gate), Reply::text("second answer")]);
        let place = Place::new();
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text("one\r");
        server.wait_for_requests(1);
        terminal.type_text("two\r");
        gate.open();
        terminal.wait_for("second answer");
        assert_eq!(server.requests()[1].messages()[3]["content"], "two");
    }

    // ---- What arrives together

    /// The prompts that come of these pieces, pasted into a terminal so many milliseconds apart, up
    /// to the one with the word `end`. Where the machine was too slow to keep the distance, it is
    /// done again.
    fn pasted(pieces: &[&str], apart: u64) -> Vec<String> {
        for _ in 0..10 {
            let replies = (0..pieces.concat().matches('\r').count()).map(|_| Reply::text("done"));
            let (server, place) = (Server::start(replies), Place::new());
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            for (n, piece) in pieces.iter().enumerate() {
                thread::sleep(Duration::from_millis(if n > 0 { apart } else { 0 }));
                let start = Instant::now();
                terminal.type_text(piece);
                longest = longest.max(last.elapsed());
                last = start;
            }
            if longest < Duration::from_millis(65) {
                let content = |r: &Request| text_of(r.messages().last().unwrap());
                let prompts = || server.requests().iter().map(content).collect::<Vec<_>>();
                let has_end = || prompts().iter().any(|prompt| prompt.contains("end"));
                terminal.live.wait_until("the last line is sent", has_end);
                return prompts();
            }
        }
        panic!("in 10 attempts the terminal never took each piece within 65 ms");
    }

    #[test]
    fn a_pasted_block_is_one_prompt() {
        for block in [
            "one\rtwo\r\rfour\rend\r",
            "fn main() {\r    /* end */\r}\r",
            "look:\r!touch never\r/quit\r/nosuch\rend\r",
            "\u{e9}\u{1f389}\r  indented \r\tend\r",
        ] {
            let expected = block.trim_end_matches('\r').replace('\r', "\n");
            let prompts = pasted(&[block], 0);
            assert_eq!(prompts.len(), 1, "{prompts:?}");
            assert_eq!(prompts[0].trim_end_matches('\n'), expected);
        }
    }

    #[test]
    fn a_block_that_comes_in_pieces_is_one_prompt() {
        let prompts = pasted(&["one\rtw", "o\r", "three\rfo", "ur\r", "end\r"], 50);
        assert_eq!(prompts, ["one\ntwo\nthree\nfour\nend"]);
    }

    #[test]
    fn a_long_block_is_one_prompt() {
        let piece: String = (0..40).map(|n| format!("line {n} {}\r", "x".repeat(40))).collect();
        let pieces: Vec<&str> = (0..10).map(|_| piece.as_str()).chain(["end\r"]).collect();
        let prompts = pasted(&pieces, 0);
        assert_eq!(prompts.len(), 1, "{:?}", prompts.iter().map(String::len).collect::<Vec<_>>());
        assert_eq!(prompts[0], pieces.concat().trim_end().replace('\r', "\n"));
    }

    #[test]
    fn lines_typed_ahead_are_one_prompt() {
        let gate = Gate::default();
        let replies = [Reply::text("first answer").held(&gate), Reply::text("second answer")];
        let (server, place) = (Server::start(replies), Place::new());
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text("one\r");
        server.wait_for_requests(1);
        terminal.type_text("two\r!touch never\rthree\r");
        terminal.wait_for("three");
        gate.open();
        terminal.wait_for("second answer");
        assert_eq!(server.requests()[1].messages()[3]["content"], "two\n!touch never\nthree");
        assert!(!place.path("never").exists(), "a pasted line was run");
    }

    #[test]
    fn the_end_of_input_behind_a_block_is_the_end() {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        let mut terminal = place.mb(&server, &[]).limit(20).terminal(80, 24);
        terminal.wait_for("> ");
        terminal.type_text("one\rtwo\r\u{4}");
        let run = terminal.finish();
        assert_eq!((run.status, server.requests().len()), (0, 1), "{run}");
        assert_eq!(server.requests()[0].messages()[1]["content"], "one\ntwo", "{run}");
    }

    /// Pastes a block whose first character makes its first line a command, which shows this. What
    /// becomes of its other lines is left open.
    fn first_line_runs(block: &str, shown: &str) {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        let mut terminal = place.terminal(&server, &[]);
        terminal.wait_for("> ");
        terminal.type_text(block);
        terminal.wait_for(shown);
    }

    #[test]
    fn a_block_that_begins_with_a_bang_is_a_shell_line() {
        first_line_runs("!echo a-b | tr - +\rtrue\r", "a+b");
    }

    mod needs_sessions {
        use super::*;

        #[test]
        fn ctrl_d_at_the_prompt_saves_and_leaves() {
            let (server, place) = (Server::start([Reply::text("done")]), Place::new());
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            terminal.type_text("hello\r");
            terminal.wait_for("done");
            terminal.wait_for("\n> ");
            terminal.key(CTRL_D);
            let run = terminal.finish();
            assert_eq!(run.status, 0, "{run}");
            assert_eq!(place.session()["messages"].as_array().unwrap().len(), 3, "{run}");
        }

        /// Writes the project's session, with this summary.
        fn put_session(place: &Place, summary: &str) {
            let messages =
                json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]);
            let session = json!({"summary": summary, "messages": messages});
            fs::create_dir_all(place.sessions()).unwrap();
            let file = place.sessions().join(place.project_id() + ".json");
            fs::write(file, session.to_string()).unwrap();
        }

        #[test]
        fn on_a_terminal_the_second_line_tells_of_a_saved_session() {
            for (summary, shown) in
                [("catching fish", "catching fish"), ("a\u{1b}[2Jb\u{202e}c", "a[2Jbc")]
            {
                let (server, place) = (Server::start([]), Place::new());
                put_session(&place, summary);
                let mut terminal = place.terminal(&server, &[]);
                terminal.wait_for("\n> ");
                let (screen, line) =
                    (terminal.screen(), format!("/continue goes on with: {shown}"));
                assert_eq!(screen.lines().nth(1).map(str::trim_end), Some(line.as_str()));
            }
        }

        #[test]
        fn without_a_saved_session_or_a_terminal_no_line_tells_of_one() {
            let (server, place) = (Server::start([]), Place::new());
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            assert_eq!(terminal.screen().lines().count(), 2);
            put_session(&place, "catching fish");
            let run = place.run(&server, &[], "!true\n");
            assert!(!format!("{}{}", run.stdout, run.stderr).contains("/continue"), "{run}");
        }

        #[test]
        fn a_saved_session_that_cannot_be_read_does_not_keep_mb_from_its_prompt() {
            let (server, place) = (Server::start([Reply::text("done")]), Place::new());
            put_session(&place, "x");
            fs::write(place.sessions().join(place.project_id() + ".json"), "{\"summ").unwrap();
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            terminal.type_text("hello\r");
            terminal.wait_for("done");
        }
    }

    mod needs_commands {
        use super::*;

        #[test]
        fn a_block_that_begins_with_a_slash_is_a_command() {
            first_line_runs("/help\r/help\r", "/compact");
        }
    }

    mod needs_compact {
        use super::*;

        const QUESTION: &str =
            "Context usage is at 62.4% (624 / 1000 tokens). Compact conversation? [Y/n]: ";

        /// A terminal on which a turn has just filled the window of 1000 tokens with so many.
        fn filled(tokens: u64) -> (Server, Place, Terminal) {
            let server = Server::start([Reply::text("one").with_usage(tokens, 0, 5)]);
            let place = Place::new();
            place.config(&server, "context_window=1000");
            let mut terminal = place.terminal(&server, &[]);
            terminal.wait_for("> ");
            terminal.type_text("first\r");
            terminal.wait_for("one");
            (server, place, terminal)
        }

        #[test]
        fn at_60_percent_compaction_is_offered_and_enter_or_y_accepts_it() {
            for answer in ["\r", "y\r"] {
                let (server, _place, mut terminal) = filled(624);
                server.push(Reply::text("the summary").with_usage(10, 0, 5));
                server.push(Reply::text("two"));
                terminal.wait_for(QUESTION);
                terminal.type_text(answer);
                server.wait_for_requests(2);
                terminal.wait_for("> ");
                terminal.type_text("next\r");
                terminal.wait_for("two");
                let requests = server.requests();
                assert_eq!(
                    requests[1].roles(),
                    ["system", "user", "assistant", "user"],
                    "{answer:?}"
                );
                assert_eq!(requests[2].roles(), ["system", "user"], "{answer:?}");
                let content = requests[2].messages()[1]["content"].as_str().unwrap();
                assert!(
                    content.contains("the summary") && content.ends_with("\n\nnext"),
                    "{content}"
                );
            }
        }

        #[test]
        fn n_ctrl_c_and_the_end_of_input_decline_compaction() {
            for answer in ["n\r", "no\r", "\u{3}", "\u{4}"] {
                let (server, _place, mut terminal) = filled(624);
                server.push(Reply::text("two").with_usage(10, 0, 5));
                terminal.wait_for(QUESTION);
                terminal.type_text(answer);
                terminal.wait_for("> ");
                terminal.type_text("next\r");
                terminal.wait_for("two");
                let requests = server.requests();
                assert_eq!(requests.len(), 2, "{answer:?}");
                assert_eq!(
                    requests[1].roles(),
                    ["system", "user", "assistant", "user"],
                    "{answer:?}"
                );
                assert_eq!(requests[1].messages()[3]["content"], "next", "{answer:?}");
            }
        }

        #[test]
        fn the_offer_comes_once_after_a_turn_and_not_after_a_command() {
            let (_server, _place, mut terminal) = filled(624);
            terminal.wait_for(QUESTION);
            terminal.type_text("n\r");
            terminal.wait_for("> ");
            terminal.type_text("!echo a-b | tr - +\r");
            terminal.wait_for("a+b");
            terminal.wait_for("> ");
            terminal.key(CTRL_D);
            let run = terminal.finish();
            assert_eq!(run.stdout.matches("Compact conversation?").count(), 1, "{run}");
        }

        #[test]
        fn the_offer_begins_at_exactly_60_percent() {
            let (_server, _place, mut terminal) = filled(600);
            terminal.wait_for(
                "Context usage is at 60.0% (600 / 1000 tokens). Compact conversation? [Y/n]: ",
            );
            let (_server, _place, mut terminal) = filled(599);
            terminal.wait_for("> ");
            terminal.key(CTRL_D);
            let run = terminal.finish();
            assert!(!run.stdout.contains("Compact conversation?"), "{run}");
        }

        #[test]
        fn an_accepted_offer_that_brings_no_summary_changes_nothing() {
            let (server, _place, mut terminal) = filled(624);
            server.push(Reply::status(401, "no more money"));
            server.push(Reply::text("two").with_usage(10, 0, 5));
            terminal.wait_for(QUESTION);
            terminal.type_text("\r");
            terminal.wait_for("no more money");
            terminal.wait_for("> ");
            terminal.type_text("next\r");
            terminal.wait_for("two");
            assert_eq!(server.requests()[2].roles(), ["system", "user", "assistant", "user"]);
        }
    }
}

mod needs_compact {
    use super::*;

    mod needs_token_line {
        use super::*;

        #[test]
        fn without_a_terminal_compaction_is_not_offered() {
            let full = |text| Reply::text(text).with_usage(900, 0, 5);
            let (server, place) = (Server::start([full("one"), full("two")]), Place::new());
            place.config(&server, "context_window=1000");
            let run = place.run(&server, &[], "first\ny\n");
            assert_eq!(run.status, 0, "{run}");
            assert!(!format!("{}{}", run.stdout, run.stderr).contains("Compact"), "{run}");
            assert_eq!(server.requests()[1].messages()[3]["content"], "y", "{run}");
        }
    }
}
