//! The prompt, its lines, and the offer to compact (§10 of the contract).

mod common;

use common::*;

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

// ---- On a terminal

#[test]
fn the_prompt_is_shown_on_a_terminal_only() {
    let server = Server::start([Reply::text("one"), Reply::text("two")]);
    let place = Place::new();
    let run = place.run(&server, &[], "hello\n!echo hi\n/quit\n");
    assert!(!run.stdout.contains("> "), "{run}");
    assert!(!run.stderr.contains("> "), "{run}");
    let mut terminal = place.terminal(&server, &[]);
    terminal.wait_for("> ");
    terminal.type_text("hello\r");
    terminal.wait_for("two");
    terminal.wait_for("\n> ");
    terminal.type_text("/quit\r");
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

#[test]
fn a_line_is_continued_on_a_terminal_too() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    let mut terminal = place.terminal(&server, &[]);
    terminal.wait_for("> ");
    terminal.type_text("one\\\r");
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

// ---- At 60 % of the context window

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
    terminal.wait_for("[tokens: ");
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
        assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{answer:?}");
        assert_eq!(requests[2].roles(), ["system", "user"], "{answer:?}");
        let content = requests[2].messages()[1]["content"].as_str().unwrap();
        assert!(content.contains("the summary") && content.ends_with("\n\nnext"), "{content}");
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
        assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{answer:?}");
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
    terminal.type_text("/quit\r");
    let run = terminal.finish();
    assert_eq!(run.stdout.matches("Compact conversation?").count(), 1, "{run}");
}

#[test]
fn the_offer_begins_at_exactly_60_percent() {
    let (_server, _place, mut terminal) = filled(600);
    terminal
        .wait_for("Context usage is at 60.0% (600 / 1000 tokens). Compact conversation? [Y/n]: ");
    let (_server, _place, mut terminal) = filled(599);
    terminal.wait_for("> ");
    terminal.type_text("/quit\r");
    let run = terminal.finish();
    assert!(!run.stdout.contains("Compact conversation?"), "{run}");
}

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
