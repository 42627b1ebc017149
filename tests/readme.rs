//! What the documents say of the source is so: each step of the algorithm, and who does it.

use std::collections::BTreeSet;

const README: &str = include_str!("../README.md");
const PORTING: &str = include_str!("../docs/porting.md");
const SOURCE: &str = include_str!("../src/main.rs");

/// The steps that a text names: "Main 4 and 6" are two, "Main 1 to 3" are three.
fn steps(text: &str) -> BTreeSet<String> {
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u32>().ok());
    let mut steps = BTreeSet::new();
    for (at, kind) in words.iter().enumerate().filter(|(_, word)| ["Main", "AL"].contains(word)) {
        let Some(first) = number(at + 1) else { continue };
        let last = number(at + 3).unwrap_or(first);
        let numbers = match words.get(at + 2) {
            Some(&"to") => (first..=last).collect(),
            Some(&"and") => vec![first, last],
            _ => vec![first],
        };
        steps.extend(numbers.iter().map(|number| format!("{kind} {number}")));
    }
    steps
}

/// Step and function: where a comment in or above a function names the step.
fn source_steps() -> BTreeSet<(String, String)> {
    let (mut found, mut function, mut above) = (BTreeSet::new(), "", String::new());
    let file_header = |line: &&str| line.starts_with("//!");
    for line in SOURCE.lines().skip_while(file_header) {
        let code = line.trim_start().trim_start_matches("extern \"C\" ");
        if let Some(rest) = code.strip_prefix("fn ") {
            function = rest.split(['(', '<']).next().unwrap();
            let named = steps(&std::mem::take(&mut above));
            found.extend(named.into_iter().map(|step| (step, function.to_string())));
        } else if line.trim_start().starts_with("///") {
            above += line;
        } else if let Some((_, comment)) = line.split_once("//").filter(|_| line.starts_with(' ')) {
            found.extend(steps(comment).into_iter().map(|step| (step, function.to_string())));
        }
    }
    found
}

/// Step and function, as the numbered list of the guide has them.
fn guide_steps() -> BTreeSet<(String, String)> {
    let porting = PORTING.split("\n## ").find(|part| part.starts_with("Porting")).unwrap();
    let items = porting.lines().filter_map(|line| line.split_once(". **"));
    let mut found = BTreeSet::new();
    for (step, rest) in items.filter_map(|(_, rest)| rest.split_once("** ")) {
        let named = rest.split(':').next().unwrap().split('`').skip(1).step_by(2);
        found.extend(named.map(|function| (step.to_string(), function.to_string())));
    }
    found
}

#[test]
fn each_step_of_the_algorithm_is_in_the_guide_and_in_the_source_at_the_same_function() {
    let (source, guide) = (source_steps(), guide_steps());
    assert!(source.len() > 10, "{source:?}");
    let missing: Vec<_> = source.difference(&guide).collect();
    assert!(missing.is_empty(), "in src/main.rs only: {missing:?}");
    let missing: Vec<_> = guide.difference(&source).collect();
    assert!(missing.is_empty(), "in docs/porting.md only: {missing:?}");
}

fn is_defined(name: &str) -> bool {
    [format!("fn {name}("), format!("fn {name}<"), format!("const {name}:")]
        .iter()
        .any(|definition| SOURCE.contains(definition))
}

#[test]
fn each_place_to_change_that_the_readme_names_exists() {
    let section = README.split("\n## ").find(|part| part.contains("where to change what")).unwrap();
    let list = section.lines().filter(|line| line.starts_with("- "));
    let names: Vec<&str> = list.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 8, "README.md names {names:?} only");
    let source = |name: &&&str| name.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    for name in names.iter().filter(source) {
        assert!(is_defined(name), "README.md names {name}, which src/main.rs does not define");
    }
}

#[test]
fn each_function_that_the_guide_names_exists() {
    let porting = PORTING.split("\n## ").find(|part| part.starts_with("Porting")).unwrap();
    let names = porting.split('`').skip(1).step_by(2);
    let function = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let settings =
        ["api_key", "confirm", "endpoint", "max_al_iterations", "quiet", "stream_options"];
    let other = ["poll", "tool", "messages"];
    for name in names.filter(function) {
        let known = is_defined(name) || settings.contains(&name) || other.contains(&name);
        assert!(known, "docs/porting.md names {name}, which src/main.rs does not define");
    }
}
