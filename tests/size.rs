//! The first rule of the contract: `src/main.rs` is small, and read by people.

#[macro_use]
mod common;

const SOURCE: &str = include_str!("../src/main.rs");

fn is_code(line: &&str) -> bool {
    !line.trim().is_empty() && !is_comment(line)
}

fn is_comment(line: &&str) -> bool {
    line.trim().starts_with("//")
}

/// Each function's name, and how many lines it has from its `fn` to its closing brace.
fn functions() -> Vec<(String, usize)> {
    let lines: Vec<&str> = SOURCE.lines().collect();
    let mut functions = Vec::new();
    for (start, line) in lines.iter().enumerate().filter(|(_, line)| is_code(line)) {
        let code = line.trim_start();
        let Some((before, rest)) = code.split_once("fn ") else { continue };
        let qualifiers = ["pub", "unsafe", "extern", "\"C\""];
        if before.split_whitespace().any(|word| !qualifiers.contains(&word)) || code.ends_with(';')
        {
            continue;
        }
        let end = line[..line.len() - code.len()].to_string() + "}";
        let more = lines[start..].iter().position(|line| *line == end).unwrap_or(0);
        let name = rest.split(['(', '<']).next().unwrap_or(rest);
        functions.push((name.to_string(), if code.ends_with('}') { 1 } else { more + 1 }));
    }
    functions
}

#[test]
fn the_file_has_at_most_930_lines_of_code_and_1190_in_all() {
    let (code, all) = (SOURCE.lines().filter(is_code).count(), SOURCE.lines().count());
    assert!(code <= 930, "there are {code} lines of code");
    assert!(all <= 1190, "there are {all} lines");
}

#[test]
fn the_algorithm_has_at_most_430_lines_of_code_from_main_to_the_banner_around() {
    let from_main = SOURCE.lines().skip_while(|line| !line.starts_with("fn main("));
    let is_banner = |line: &&str| line.starts_with("// ---- Around");
    assert!(SOURCE.lines().any(|line| is_banner(&line)), "no banner ends the algorithm");
    let code = from_main.take_while(|line| !is_banner(line)).filter(is_code).count();
    assert!((1..=430).contains(&code), "there are {code} lines of code");
}

#[test]
fn no_function_is_longer_than_45_lines() {
    let functions = functions();
    assert!(functions.iter().any(|(name, _)| name == "main"), "the functions: {functions:?}");
    let long: Vec<_> = functions.iter().filter(|(_, lines)| *lines > 45).collect();
    assert!(long.is_empty(), "too long, with their lines: {long:?}");
}

#[test]
fn there_are_16_lines_of_comment_to_100_of_code() {
    let comments = SOURCE.lines().filter(is_comment).count();
    let code = SOURCE.lines().filter(is_code).count();
    assert!(comments * 100 >= code * 16, "{comments} lines of comment to {code} of code");
}

#[test]
fn what_can_panic_or_fails_on_a_phone_is_not_called() {
    for banned in [".unwrap()", ".expect(", "println!", "print!", "panic!", "thread::sleep"] {
        let found = SOURCE.lines().filter(is_code).find(|line| line.contains(banned));
        assert_eq!(found, None, "{banned} is called");
    }
}

#[test]
fn no_line_is_too_long_to_be_read() {
    let long: Vec<_> = SOURCE.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(long.is_empty(), "longer than 100 characters: {long:#?}");
}
