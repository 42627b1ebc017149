//! The first rule of the contract: `src/main.rs` is small, and read by people.

const SOURCE: &str = include_str!("../src/main.rs");

fn is_code(line: &&str) -> bool {
    !line.trim().is_empty() && !line.trim().starts_with("//")
}

#[test]
fn the_file_has_at_most_900_lines_of_code_and_1150_in_all() {
    let code = SOURCE.lines().filter(is_code).count();
    assert!(code <= 900, "{code} lines of code");
    assert!(SOURCE.lines().count() <= 1150, "{} lines", SOURCE.lines().count());
}

#[test]
fn the_algorithm_has_at_most_450_lines_of_code_from_main_to_the_banner_around() {
    let from_main = SOURCE.lines().skip_while(|line| !line.starts_with("fn main("));
    let is_banner = |line: &&str| line.starts_with("// ---- Around");
    assert!(SOURCE.lines().any(|line| is_banner(&line)), "no banner ends the algorithm");
    let code = from_main.take_while(|line| !is_banner(line)).filter(is_code).count();
    assert!((1..=450).contains(&code), "{code} lines of code");
}

#[test]
fn what_can_panic_or_fails_on_a_phone_is_not_called() {
    for banned in [".unwrap()", ".expect(", "println!", "print!", "panic!", "thread::sleep"] {
        let found = SOURCE.lines().filter(is_code).find(|line| line.contains(banned));
        assert_eq!(found, None, "{banned}");
    }
}

#[test]
fn no_line_is_too_long_to_be_read() {
    let long: Vec<_> = SOURCE.lines().filter(|line| line.chars().count() > 100).collect();
    assert_eq!(long, Vec::<&str>::new());
}
