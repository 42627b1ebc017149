//! Who adds a setting, a command or a tool is told all the places that have to name it.

#[macro_use]
mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;

const README: &str = include_str!("../README.md");
const EXAMPLE: &str = include_str!("../model.cfg.example");
const SOURCE: &str = include_str!("../src/main.rs");

/// What the rows of a table of the README have in their first two cells.
fn table(head: &str) -> Vec<(&'static str, &'static str)> {
    let rows = README.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let cells = rows.take_while(|line| line.starts_with("| ")).map(|row| row.splitn(4, " | "));
    let rows: Vec<_> = cells.map(|mut cells| (cells.next(), cells.next())).collect();
    assert!(!rows.is_empty(), "the README has no table {head:?}");
    rows.iter().map(|row| (row.0.unwrap_or_default(), row.1.unwrap_or_default())).collect()
}

/// The words in a text that are quoted by backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The settings and their defaults, as mb tells them where nothing is configured.
fn settings() -> BTreeMap<String, String> {
    let place = Place::new();
    let run = place.mb_alone(&[]).stdin("/cfg\n").run();
    let pairs = run.stdout.lines().filter_map(|line| line.split_once('='));
    let settings: BTreeMap<_, _> = pairs.map(|(key, value)| (key.into(), value.into())).collect();
    assert!(settings.contains_key("endpoint"), "/cfg does not list the settings{run}");
    settings
}

fn difference<'a, T: Ord + Clone + 'a>(some: &BTreeSet<T>, others: &BTreeSet<T>) -> Vec<T> {
    some.difference(others).cloned().collect()
}

#[test]
fn each_setting_is_in_the_readme_with_its_default() {
    let rows = table("| key | default |");
    let key = |row: &(&str, &str)| quoted(row.0).next().unwrap_or_default().to_string();
    let documented: BTreeSet<String> = rows.iter().map(key).collect();
    let settings = settings();
    let known: BTreeSet<String> = settings.keys().cloned().collect();
    assert_eq!(difference(&known, &documented), [""; 0], "not in the README's table");
    assert_eq!(difference(&documented, &known), [""; 0], "in the README's table, but no setting");
    for row in &rows {
        let default = &settings[&key(row)];
        let said = if default.is_empty() { "none" } else { default };
        assert!(row.1.contains(said), "the README's default of {row:?} is not {said}");
    }
}

#[test]
fn each_setting_is_in_the_example_with_its_default() {
    for (key, default) in settings() {
        let line = format!("#{key}={default}");
        assert!(EXAMPLE.lines().any(|it| it == line), "model.cfg.example has no line {line}");
    }
}

/// Each command that mb knows: of the words in its source, those that it does not call unknown.
fn commands() -> BTreeSet<String> {
    let place = Place::new();
    let server = Server::start([]);
    let complaint = |word: &str, rest: &str| {
        let run = place.run(&server, &[], &format!("{word}{rest}\n"));
        run.stderr.replace(word, "/word")
    };
    let [unknown, unknown_too] = ["", " x"].map(|rest| complaint("/nosuch", rest));
    let is_word = |word: &&str| {
        word.strip_prefix('/').is_some_and(|name| name.bytes().all(|c| c.is_ascii_lowercase()))
    };
    let words: BTreeSet<&str> =
        SOURCE.split('"').filter(is_word).filter(|it| it.len() > 1).collect();
    let known =
        |word: &&&str| complaint(word, "") != unknown || complaint(word, " x") != unknown_too;
    words.iter().filter(known).map(|word| word.to_string()).collect()
}

/// The commands that a text names: the words that begin with `/`.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split([' ', ',', '\n', '`']).filter(|word| word.starts_with('/'));
    words.map(String::from).collect()
}

#[test]
fn each_command_is_in_the_help_and_in_the_readme() {
    let commands = commands();
    assert!(commands.contains("/save"), "the commands: {commands:?}");
    let help = Place::new().mb_alone(&[]).stdin("/help\n").run();
    let readme: String = table("| command |").iter().map(|row| format!("{}\n", row.0)).collect();
    for (place, text) in [("/help", help.stdout.as_str()), ("the README's table", &readme)] {
        let named = named(text);
        assert_eq!(difference(&commands, &named), [""; 0], "not in {place}");
        assert_eq!(difference(&named, &commands), [""; 0], "in {place}, but no command");
    }
}

#[test]
fn the_system_prompt_and_the_readme_tell_how_many_tools_there_are_and_the_prompt_names_them() {
    let server = Server::start([Reply::text("done")]);
    let run = Place::new().run(&server, &["-"], "hello");
    let requests = server.requests();
    let request = requests.first().unwrap_or_else(|| panic!("no request{run}"));
    let prompt = text_of(&request.messages()[0]);
    let tools = request.body["tools"].as_array().expect("a list of tools");
    let number = ["no", "one", "two", "three", "four", "five"][tools.len()];
    for (place, text) in [("the system prompt", prompt.as_str()), ("the README", README)] {
        assert!(text.contains(&format!("{number} tools")), "there are {number}, says not {place}");
    }
    for tool in tools {
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        assert!(!name.is_empty() && prompt.contains(name), "the prompt does not name {name:?}");
    }
}
