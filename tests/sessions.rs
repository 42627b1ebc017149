//! Saved sessions (§11 of the contract).

#[macro_use]
mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use common::*;
use serde_json::{Value, json};

mod needs_sessions {
    use super::*;

    /// Writes a session file, so many seconds after 1970.
    fn put(place: &Place, id: &str, bytes: impl AsRef<[u8]>, seconds: u64) {
        fs::create_dir_all(place.sessions()).unwrap();
        let path = place.sessions().join(format!("{id}.json"));
        fs::write(&path, bytes).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    /// A session in which the user said this and was answered.
    fn talk(text: &str) -> Value {
        json!([{"role": "system", "content": "old system"}, {"role": "user", "content": text},
        {"role": "assistant", "content": "yes"}])
    }

    fn put_talk(place: &Place, id: &str, text: &str) {
        let session = json!({"summary": format!("about {text}"), "messages": talk(text)});
        put(place, id, session.to_string(), 1_000_000_000);
    }

    /// A session's file; null where there is none.
    fn read(place: &Place, id: &str) -> Value {
        let file = place.sessions().join(format!("{id}.json"));
        fs::read(file).map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap())
    }

    /// The names in the folder of sessions; none without one.
    fn files(place: &Place) -> Vec<String> {
        let entries = fs::read_dir(place.sessions()).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// Types these lines, all of whose requests are answered `done`.
    fn type_lines(place: &Place, lines: &str, answers: usize) -> (Vec<Request>, Run) {
        let server = Server::start((0..answers).map(|_| Reply::text("done")));
        place.config(&server, "");
        let run = place.run(&server, &[], lines);
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(server.requests().len(), answers, "{run}");
        (server.requests(), run)
    }

    /// The texts of a conversation that was sent, behind the system prompt.
    fn said(request: &Request) -> Vec<String> {
        request.messages()[1..].iter().map(text_of).collect()
    }

    // ---- The file

    #[test]
    fn a_session_is_a_summary_and_the_messages_as_they_are_sent() {
        let call = ("c1", "shell_exec", r#"{"command":"echo hi"}"#);
        let server = Server::start([Reply::calls(&[call]), Reply::text("one"), Reply::text("two")]);
        let place = Place::new();
        let run = place.run(&server, &[], "first\nsecond\n");
        let session = place.session();
        let keys: Vec<_> = session.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["summary", "messages"], "{run}");
        assert!(session["summary"].is_string(), "{run}");
        let messages = session["messages"].as_array().unwrap();
        let (last, before) = messages.split_last().unwrap();
        assert_eq!(before, server.requests()[2].messages(), "{run}");
        assert_eq!(
            (last["role"].as_str(), last["content"].as_str()),
            (Some("assistant"), Some("two"))
        );
    }

    #[test]
    fn folder_and_files_are_for_their_owner_alone() {
        let place = Place::new();
        let (_, run) = type_lines(&place, "hello\n/save named\n", 2);
        assert_eq!(mode(&place.sessions()), 0o700, "{run}");
        for name in files(&place) {
            assert_eq!(mode(&place.sessions().join(name)), 0o600, "{run}");
        }
    }

    #[test]
    fn a_save_replaces_the_file_in_one_step() {
        let place = Place::new();
        put_talk(&place, &place.project_id(), "earlier");
        put_talk(&place, "named", "earlier");
        let open = |id: &str| File::open(place.sessions().join(format!("{id}.json"))).unwrap();
        for (mut old, lines, answers) in [
            (open(&place.project_id()), "/continue\nhi\n", 1),
            (open("named"), "hi\n/save named\n", 2),
        ] {
            let (_, run) = type_lines(&place, lines, answers);
            let mut text = String::new();
            old.read_to_string(&mut text).unwrap();
            assert_eq!(
                serde_json::from_str::<Value>(&text).unwrap()["messages"],
                talk("earlier"),
                "{run}"
            );
        }
        assert_eq!(read(&place, "named")["messages"][1]["content"], "hi");
    }

    #[test]
    fn a_save_that_is_cut_off_leaves_the_old_file_whole() {
        let server = Server::start([Reply::text("one"), Reply::text(&"long ".repeat(4000))]);
        let place = Place::new();
        let mut live = place.start(&server, &[]);
        live.send("first\n");
        live.wait_until("it is saved", || {
            !files(&place).is_empty() && files(&place)[0].ends_with("json")
        });
        let before = place.session();
        for (limit, bytes) in [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_FSIZE, 4096)] {
            let limits = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            let old = std::ptr::null_mut();
            assert_eq!(unsafe { libc::prlimit(live.pid(), limit, &limits, old) }, 0);
        }
        live.send("second\n/quit\n");
        let run = live.finish(); // killed by SIGXFSZ in the middle of the save, or told of an error
        assert_eq!(server.requests().len(), 2, "{run}");
        assert_eq!(place.session(), before, "{run}");
    }

    // ---- When it is saved

    #[test]
    fn it_is_saved_after_each_turn() {
        let server =
            Server::start([Reply::text("one"), Reply::status(401, "no"), Reply::text("two")]);
        let place = Place::new();
        let mut live = place.start(&server, &[]);
        for (line, count) in [("first", 3), ("fails", 4), ("second", 5)] {
            live.send(format!("{line}\n"));
            let file = place.sessions().join(place.project_id() + ".json");
            live.wait_until(&format!("{line} is saved"), || {
                file.exists() && place.session()["messages"].as_array().unwrap().len() == count
            });
        }
        assert_eq!(place.session()["messages"][3]["content"], "fails\n\nsecond");
    }

    #[test]
    fn what_load_brought_is_saved_at_once() {
        let (server, place) = (Server::start([]), Place::new());
        put_talk(&place, "other", "others");
        let mut live = place.start(&server, &[]);
        live.send("/load other\n");
        let file = place.sessions().join(place.project_id() + ".json");
        live.wait_until("it is saved", || file.exists());
        assert_eq!(place.session()["messages"][1]["content"], "others");
    }

    #[test]
    fn it_is_saved_after_continue_and_at_the_end() {
        let (server, place) = (Server::start([]), Place::new());
        put(&place, &place.project_id(), talk("mine").to_string(), 0);
        let mut live = place.start(&server, &[]);
        live.send("/continue\n");
        live.wait_until("it is saved", || place.session().is_object());
        live.send("/load other\n");
        live.wait_for_stderr("\n");
        put_talk(&place, "other", "others");
        live.send("/load other\n");
        live.close_stdin();
        let run = live.finish();
        assert_eq!(place.session()["messages"][1]["content"], "others", "{run}");
    }

    #[test]
    fn file_mode_saves_nothing() {
        for lines in ["hello", "!echo hi", "/save named"] {
            let (server, place) = (Server::start([]), Place::new());
            if !lines.starts_with('!') {
                server.push(Reply::text("done"));
                server.push(Reply::text("done"));
            }
            place.write("p.txt", lines);
            for (args, stdin) in [(["p.txt"], ""), (["-"], lines)] {
                let run = place.run(&server, &args, stdin);
                assert_eq!(run.status, 0, "{run}");
                assert_ne!(run.stdout, "", "{run}");
                assert_eq!(files(&place), [""; 0], "{run}");
            }
        }
    }

    #[test]
    fn file_mode_leaves_the_projects_session_alone() {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        put_talk(&place, &place.project_id(), "mine");
        let run = place.run(&server, &["-"], "hello");
        assert_eq!(server.requests()[0].roles(), ["system", "user"], "{run}");
        assert_eq!(place.session()["messages"], talk("mine"), "{run}");
    }

    #[test]
    fn before_the_model_has_said_something_nothing_is_saved() {
        for line in ["hello", "hello\n/save", "hello\n/save named", "hello\n!true\n/help"] {
            // The second reply is for who asks for a summary all the same.
            let server = Server::start([Reply::status(401, "no"), Reply::status(401, "no")]);
            let place = Place::new();
            put_talk(&place, &place.project_id(), "mine");
            let run = place.run(&server, &[], &format!("{line}\n"));
            assert_eq!(files(&place), [place.project_id() + ".json"], "{line:?}{run}");
            assert_eq!(place.session()["messages"], talk("mine"), "{line:?}{run}");
        }
    }

    #[test]
    fn what_had_no_answer_is_saved_with_the_first_one() {
        let server = Server::start([Reply::status(401, "no"), Reply::text("one")]);
        let place = Place::new();
        let run = place.run(&server, &[], "first\nsecond\n");
        assert_eq!(place.session()["messages"][1]["content"], "first\n\nsecond", "{run}");
        assert_eq!(files(&place), [place.project_id() + ".json"], "{run}");
    }

    #[test]
    fn a_loaded_session_keeps_its_summary() {
        for command in ["/load other", "/continue"] {
            let place = Place::new();
            put_talk(&place, "other", "fish");
            put_talk(&place, &place.project_id(), "fish");
            let (_, run) = type_lines(&place, &format!("{command}\nnext\n"), 1);
            assert_eq!(place.session()["summary"], "about fish", "{run}");
            assert_eq!(place.session()["messages"].as_array().unwrap().len(), 5, "{run}");
        }
    }

    // ---- The session before last

    /// The project's earlier session, which another conversation has taken the place of.
    fn prev(place: &Place) -> Value {
        read(place, &format!("{}-prev", place.project_id()))["messages"].clone()
    }

    fn prev_exists(place: &Place) -> bool {
        place.sessions().join(format!("{}-prev.json", place.project_id())).exists()
    }

    #[test]
    fn a_new_conversation_moves_the_earlier_one_aside_and_says_so() {
        let place = Place::new();
        put_talk(&place, &place.project_id(), "yesterdays");
        let before =
            fs::read_to_string(place.sessions().join(place.project_id() + ".json")).unwrap();
        let (requests, run) = type_lines(&place, "today\nand more\n", 2);
        assert_eq!(said(&requests[1]), ["today", "done", "and more"], "{run}");
        let name = format!("{}-prev", place.project_id());
        let after = fs::read_to_string(place.sessions().join(format!("{name}.json"))).ok();
        assert_eq!(after, Some(before), "{run}");
        assert_eq!(place.session()["messages"][1]["content"], "today", "{run}");
        let told = format!("{}{}", run.stdout, run.stderr);
        assert_eq!(told.lines().filter(|line| line.contains(&name)).count(), 1, "{run}");
    }

    #[test]
    fn what_was_moved_aside_can_be_loaded_and_the_other_takes_its_place() {
        let place = Place::new();
        put_talk(&place, &place.project_id(), "yesterdays");
        type_lines(&place, "today\n", 1);
        let lines = format!("/load {}-prev\nnext\n", place.project_id());
        let (requests, run) = type_lines(&place, &lines, 1);
        assert_eq!(said(&requests[0]), ["yesterdays", "yes", "next"], "{run}");
        assert_eq!(place.session()["messages"].as_array().unwrap().len(), 5, "{run}");
        assert_eq!(prev(&place)[1]["content"], "today", "{run}");
    }

    #[test]
    fn each_new_conversation_moves_the_one_before_it_and_is_moved_once() {
        let place = Place::new();
        type_lines(&place, "one\nmore\n", 2);
        assert!(!prev_exists(&place), "there was none before it");
        let (_, run) = type_lines(&place, "two\nmore\n!true\n", 2);
        assert_eq!(prev(&place)[1]["content"], "one", "{run}");
        let (_, run) = type_lines(&place, "three\n", 1);
        assert_eq!(prev(&place)[1]["content"], "two", "{run}");
        assert_eq!(place.session()["messages"][1]["content"], "three", "{run}");
    }

    #[test]
    fn a_loaded_conversation_is_another_too() {
        let place = Place::new();
        put_talk(&place, &place.project_id(), "mine");
        put_talk(&place, "other", "others");
        let (_, run) = type_lines(&place, "/load other\n/contineu\nnext\n", 1);
        assert_eq!(prev(&place), talk("mine"), "{run}");
        assert_eq!(place.session()["messages"][1]["content"], "others", "{run}");
        assert_eq!(read(&place, "other")["messages"], talk("others"), "{run}");
    }

    #[test]
    fn what_the_file_holds_already_moves_nothing() {
        let place = Place::new();
        put_talk(&place, &place.project_id(), "mine");
        put_talk(&place, "other", "others");
        for _ in 0..2 {
            let (_, run) = type_lines(&place, "/load other\n", 0);
            assert_eq!(prev(&place), talk("mine"), "{run}");
        }
    }

    #[test]
    fn going_on_with_the_projects_session_moves_nothing() {
        for lines in ["/continue\nmore\n", "/cont\nmore\n/save\n", "/continue\n/continue\nmore\n"] {
            let place = Place::new();
            put_talk(&place, &place.project_id(), "mine");
            let (_, run) = type_lines(&place, lines, 1 + lines.matches("/save").count());
            assert_eq!(files(&place), [place.project_id() + ".json"], "{run}");
            assert_eq!(place.session()["messages"].as_array().unwrap().len(), 5, "{run}");
            assert!(!format!("{}{}", run.stdout, run.stderr).contains("-prev"), "{run}");
        }
    }

    #[test]
    fn a_save_by_hand_moves_the_earlier_session_no_further() {
        for (line, summary) in [("/save", "about today"), ("/save named", "today")] {
            let server = Server::start([Reply::text("one"), Reply::text("about today")]);
            let place = Place::new();
            put_talk(&place, &place.project_id(), "mine");
            let run = place.run(&server, &[], &format!("today\n{line}\n"));
            assert_eq!(prev(&place), talk("mine"), "{run}");
            let text = place.session()["summary"].as_str().unwrap().to_string();
            assert!(text.contains(summary), "{summary:?} is not in {text:?}{run}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_moved_aside_too() {
        let place = Place::new();
        put(&place, &place.project_id(), r#"{"summary":"s","mess"#, 0);
        let (_, run) = type_lines(&place, "today\n", 1);
        let file = place.sessions().join(format!("{}-prev.json", place.project_id()));
        assert_eq!(
            fs::read_to_string(file).ok().as_deref(),
            Some(r#"{"summary":"s","mess"#),
            "{run}"
        );
    }

    #[test]
    fn the_list_shows_the_session_before_last_with_its_own_time() {
        let place = Place::new();
        put_talk(&place, &place.project_id(), "yesterdays"); // 2001-09-09 01:46:40
        type_lines(&place, "today\n", 1);
        let (_, run) = type_lines(&place, "/list\n", 0);
        let (own, lines) = (place.project_id(), run.stdout.lines().collect::<Vec<_>>());
        assert_eq!(lines.len(), 2, "{run}");
        assert!(lines[0].starts_with(&format!("* {own} ")) && lines[0].contains("today"), "{run}");
        assert!(lines[1].starts_with(&format!("  {own}-prev ")), "{run}");
        for part in ["2001-09-09", "01:46", "about yesterdays"] {
            assert!(lines[1].contains(part), "no {part}{run}");
        }
    }

    // ---- /save

    #[test]
    fn save_asks_the_model_for_a_summary_that_does_not_join_the_conversation() {
        for (command, id) in [("/save", None), ("/save my.name_1-x", Some("my.name_1-x"))] {
            let summary = Reply::text("all about fish");
            let server = Server::start([Reply::text("one"), summary, Reply::text("two")]);
            let place = Place::new();
            let run = place.run(&server, &[], &format!("first\n{command}\nsecond\n"));
            let requests = server.requests();
            assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{run}");
            assert_eq!(requests[2].roles(), ["system", "user", "assistant", "user"], "{run}");
            assert_eq!(requests[2].messages()[3]["content"], "second", "{run}");
            let saved = read(&place, id.unwrap_or(&place.project_id()));
            assert_eq!(saved["summary"], "all about fish", "{run}");
            let count = if id.is_some() { 3 } else { 5 }; // the project's goes on
            assert_eq!(saved["messages"].as_array().unwrap().len(), count, "{run}");
        }
    }

    #[test]
    fn without_a_summary_by_the_model_it_is_the_first_prompts_first_line() {
        let nothing = json!({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]});
        for reply in [Reply::status(401, "no"), Reply::json(nothing)] {
            let server = Server::start([Reply::text("one"), Reply::text("two"), reply]);
            let place = Place::new();
            let run = place.run(&server, &[], "catch \u{1f41f}\\\nand more\nsecond\n/save x\n");
            assert_eq!(read(&place, "x")["summary"], "catch \u{1f41f}", "{run}");
            assert_eq!(read(&place, "x")["messages"].as_array().unwrap().len(), 5, "{run}");
        }
    }

    #[test]
    fn before_the_model_has_said_something_a_save_by_hand_is_an_error() {
        let (server, place) = (Server::start([Reply::status(401, "no")]), Place::new());
        let run = place.run(&server, &[], "hello\n/save named\n");
        assert_eq!((run.status, run.stderr.lines().count()), (0, 2), "{run}");
        assert_eq!((run.stdout.contains("named"), server.requests().len()), (false, 1), "{run}");
        assert_eq!(files(&place), [""; 0], "{run}");
    }

    #[test]
    fn a_missing_session_lists_those_that_there_are() {
        let place = Place::new();
        put_talk(&place, "lemon", "one");
        for (more, id) in [("", "zzz"), ("melon", "zzz"), ("melon", "lem on")] {
            if !more.is_empty() {
                put_talk(&place, more, "two");
            }
            let (_, run) = type_lines(&place, &format!("/load {id}\n"), 0);
            assert!(run.stderr.contains("\nlemon  ") && run.stderr.contains(more), "{run}");
            assert!(!run.stdout.contains("loaded"), "{run}");
        }
    }

    #[test]
    fn a_bad_name_is_an_error_and_nothing_is_saved_under_it() {
        for name in
            ["../../x", "..", ".", ".hidden", "a/b", "/tmp/x", "a b", "\u{e9}", "a*", "x\\y"]
        {
            let place = Place::new();
            let server = Server::start([Reply::text("one")]);
            server.push(Reply::status(401, "no summary")); // in case one is asked for
            let run = place.run(&server, &[], &format!("hello\n/save {name}\n"));
            assert_eq!(run.status, 0, "{run}");
            assert!(!run.stderr.replace("no summary", "").trim().is_empty(), "{run}");
            assert_eq!(files(&place), [place.project_id() + ".json"], "{run}");
            for path in [place.home().join("x.json"), place.home().join(".bantam/x.json")] {
                assert!(!path.exists(), "{run}");
            }
            assert!(
                !place.path("x.json").exists() && !place.path(".hidden.json").exists(),
                "{run}"
            );
        }
    }

    // ---- /continue

    #[test]
    fn continue_goes_on_with_the_projects_session() {
        for command in ["/continue", "/cont"] {
            let place = Place::new();
            type_lines(&place, "first\n", 1);
            let before = place.session();
            let (requests, run) = type_lines(&place, &format!("{command}\nsecond\n"), 1);
            let messages = requests[0].messages();
            assert_eq!(&messages[..3], before["messages"].as_array().unwrap(), "{run}");
            assert_eq!(messages[3], json!({"role": "user", "content": "second"}), "{run}");
            assert_eq!(place.session()["messages"].as_array().unwrap().len(), 5, "{run}");
        }
    }

    #[test]
    fn continue_without_a_session_is_an_error_and_changes_nothing() {
        let place = Place::new();
        put_talk(&place, "other", "others");
        let (requests, run) = type_lines(&place, "/continue\nfirst\n", 1);
        assert!(!run.stderr.trim().is_empty(), "{run}");
        assert_eq!(requests[0].roles(), ["system", "user"], "{run}");
    }

    #[test]
    fn each_folder_has_a_session_of_its_own() {
        let place = Place::new();
        type_lines(&place, "first\n", 1);
        let id = place.project_id();
        assert!(id.len() == 32 && id.chars().all(|c| "0123456789abcdef".contains(c)), "{id}");
        assert_eq!(files(&place), [id + ".json"]);
    }

    // ---- /load

    #[test]
    fn load_takes_an_exact_id_or_a_unique_beginning() {
        for (argument, expected) in [
            ("apple", "apples"),            // also the beginning of another
            ("applep", "pies"),             // unique
            ("applepie", "pies"),           // exact
            ("b", "bees"),                  // unique
            ("-dash", "dashes"),            // no option of anything
            ("-", "dashes"),                // unique
            ("1e3", "numbers"),             // exact
            ("UP.per_1-", "upper letters"), // exact
        ] {
            let place = Place::new();
            for (id, text, seconds) in [
                ("apple", "apples", 1),
                ("applepie", "pies", 2), // newer, so it is found first
                ("bee", "bees", 3),
                ("-dash", "dashes", 4),
                ("1e3", "numbers", 5),
                ("UP.per_1-", "upper letters", 6),
            ] {
                put(&place, id, talk(text).to_string(), seconds);
            }
            let (requests, run) = type_lines(&place, &format!("/load {argument}\nnext\n"), 1);
            assert_eq!(requests[0].messages()[1]["content"], expected, "{run}");
            assert_eq!(requests[0].messages()[3]["content"], "next", "{run}");
        }
    }

    #[test]
    fn an_ambiguous_beginning_lists_the_candidates_and_loads_nothing() {
        let place = Place::new();
        for id in ["apple", "applepie", "bee"] {
            put_talk(&place, id, "text");
        }
        let (requests, run) = type_lines(&place, "/load app\nnext\n", 1);
        let shown = format!("{}{}", run.stdout, run.stderr);
        let lines: Vec<_> = shown.lines().filter(|line| !line.contains("bee")).collect();
        assert!(lines.iter().any(|l| l.contains("apple") && !l.contains("applepie")), "{run}");
        assert!(lines.iter().any(|l| l.contains("applepie")), "{run}");
        assert!(!shown.contains("bee"), "{run}");
        assert_eq!(requests[0].roles(), ["system", "user"], "{run}");
    }

    #[test]
    fn what_is_no_saved_session_is_an_error_and_changes_nothing() {
        let place = Place::new();
        put_talk(&place, "apple", "the apple");
        put_talk(&place, ".hidden", "the hidden one");
        fs::write(place.home().join(".bantam/x.json"), talk("outside").to_string()).unwrap();
        fs::write(place.home().join("x.json"), talk("outside").to_string()).unwrap();
        for name in [
            "..",
            "../x",
            "../../x",
            ".hidden",
            ".",
            "./apple",
            "nosuch",
            "pple",
            "apple.json",
            "*",
            "[a]*",
            "a*",
            "apple x",
            "$HOME",
            "a;b",
            "\u{e9}",
        ] {
            let (requests, run) = type_lines(&place, &format!("first\n/load {name}\nsecond\n"), 2);
            assert!(!run.stderr.trim().is_empty(), "{run}");
            assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{run}");
            assert_eq!(requests[1].messages()[1]["content"], "first", "{run}");
        }
    }

    #[test]
    fn load_without_an_id_is_an_error() {
        let place = Place::new();
        put_talk(&place, "apple", "the apple");
        let (requests, run) = type_lines(&place, "/load\nfirst\n", 1);
        assert!(!run.stderr.trim().is_empty(), "{run}");
        assert_eq!(requests[0].roles(), ["system", "user"], "{run}");
    }

    #[test]
    fn a_loaded_session_replaces_the_conversation_and_its_own_file_stays() {
        let place = Place::new();
        put_talk(&place, "other", "others");
        let (requests, run) = type_lines(&place, "apples\n/load other\nsecond\n", 2);
        assert_eq!(said(&requests[1]), ["others", "yes", "second"], "{run}");
        assert_eq!(read(&place, "other")["messages"], talk("others"), "{run}");
        assert_eq!(place.session()["messages"].as_array().unwrap().len(), 5, "{run}");
    }

    #[test]
    fn the_current_system_prompt_takes_the_place_of_a_loaded_one() {
        let bare = Value::from(talk("bare").as_array().unwrap()[1..].to_vec());
        for (id, session) in [
            ("object", json!({"summary": "s", "messages": talk("x")})),
            ("array", talk("x")),
            ("without", json!({"messages": bare})),
            ("bare", bare),
        ] {
            let (server, place) = (Server::start([Reply::text("done")]), Place::new());
            place.run(&server, &["-"], "hello"); // which saves nothing
            let system = server.requests()[0].messages()[0].clone();
            put(&place, id, session.to_string(), 0);
            for command in [format!("/load {id}"), "/continue".into()] {
                put(&place, &place.project_id(), session.to_string(), 0);
                let (requests, run) = type_lines(&place, &format!("{command}\nnext\n"), 1);
                assert_eq!(requests[0].roles(), ["system", "user", "assistant", "user"], "{run}");
                assert_eq!(requests[0].messages()[0], system, "{run}");
                assert_eq!(place.session()["messages"][0], system, "{run}");
            }
        }
    }

    #[test]
    fn what_comes_from_a_session_is_taken_as_it_is() {
        let place = Place::new();
        let call = json!({"id": "x", "type": "function", "index": 0,
        "extra_content": {"a": [1, null]},
        "function": {"name": "gone", "arguments": "{\"b\":  1.50}"}});
        let messages = json!([{"role": "system", "content": "old"},
        {"role": "user", "content": [{"type": "text", "text": "a\u{200b}b"}], "name": "me"},
        {"content": null, "reasoning_details": [{"data": "d"}], "role": "assistant",
            "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "\u{1b}[0m", "custom": true},
        {"role": "developer", "content": ""},
        {"role": "assistant", "content": "yes", "refusal": null}]);
        put(&place, "old", messages.to_string(), 0);
        let (requests, run) = type_lines(&place, "/load old\nnext\n", 1);
        let sent = requests[0].messages();
        assert_eq!(sent[1..6], messages.as_array().unwrap()[1..], "{run}");
        let text = sent[1..6].iter().map(Value::to_string).collect::<Vec<_>>();
        let old =
            messages.as_array().unwrap()[1..].iter().map(Value::to_string).collect::<Vec<_>>();
        assert_eq!(text, old, "{run}"); // with the order of their keys
    }

    #[test]
    fn load_and_continue_show_the_summary_of_what_they_loaded() {
        for command in ["/load other", "/load oth", "/continue", "/cont"] {
            let place = Place::new();
            let summary = "all about\u{1b}[2J fi\u{202e}sh";
            let session = json!({"summary": summary, "messages": talk("x")}).to_string();
            put(&place, &place.project_id(), &session, 0);
            put(&place, "other", &session, 0);
            let (_, run) = type_lines(&place, &format!("{command}\n"), 0);
            assert!(run.stdout.contains("all about[2J fish\n"), "{run}");
        }
    }

    // ---- Broken files

    const BROKEN: [(&str, &str); 10] = [
        ("empty", ""),
        ("half", r#"{"summary":"s","messages":[{"role":"user","cont"#),
        ("bytes", "[\"\u{0}\u{1}"),
        ("numbers", "[1]"),
        ("object", "{}"),
        ("null", "null"),
        ("string", "\"x\""),
        ("number", r#"{"messages":5}"#),
        ("nested", r#"{"messages":{"role":"user","content":"x"}}"#),
        ("roleless", r#"{"messages":[{"role":"user","content":"x"},{"content":"y"}]}"#),
    ];

    #[test]
    fn a_broken_session_is_not_loaded_and_stops_nothing() {
        let place = Place::new();
        BROKEN.iter().for_each(|(id, text)| put(&place, id, text, 0));
        put(&place, "latin", b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}", 0);
        fs::create_dir(place.sessions().join("folder.json")).unwrap();
        for id in BROKEN.iter().map(|(id, _)| *id).chain(["latin", "folder"]) {
            let (requests, run) = type_lines(&place, &format!("first\n/load {id}\nsecond\n"), 2);
            assert!(!run.stderr.trim().is_empty(), "{run}");
            assert!(!run.stderr.contains("panicked"), "{run}");
            assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{run}");
            assert_eq!(requests[1].messages()[1]["content"], "first", "{run}");
        }
        for (id, text) in BROKEN {
            put(&place, &place.project_id(), text, 0);
            let (requests, run) = type_lines(&place, "/continue\nfirst\n", 1);
            assert_eq!(requests[0].roles(), ["system", "user"], "{id}{run}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_listed_as_unreadable_among_the_others() {
        let place = Place::new();
        BROKEN.iter().for_each(|(id, text)| put(&place, id, text, 0));
        fs::create_dir(place.sessions().join("folder.json")).unwrap();
        put_talk(&place, "good", "fish");
        let (_, run) = type_lines(&place, "/list\n", 0);
        for (id, _) in BROKEN {
            assert!(run.stdout.contains(&format!("  {id} ")), "{id}{run}");
        }
        for id in ["empty", "half", "bytes"] {
            let line = run.stdout.lines().find(|line| line.contains(id)).unwrap();
            assert!(line.contains("(unreadable)"), "{line}{run}");
        }
        let good = run.stdout.lines().find(|line| line.contains("good")).unwrap();
        assert!(good.contains("about fish") && !good.contains("(unreadable)"), "{run}");
    }

    // ---- /list

    #[test]
    fn the_list_is_newest_first_with_utc_times_counts_and_summaries() {
        let (server, place) = (Server::start([]), Place::new());
        let seven = Value::from(vec![json!({"role": "user", "content": "hi"}); 7]);
        let session = |summary| json!({"summary": summary, "messages": seven}).to_string();
        put(&place, "bb", session("middle"), 1_234_567_890); // 2009-02-13 23:31:30
        put(&place, "aa", session("oldest"), 1_000_000_000); // 2001-09-09 01:46:40
        put(&place, &place.project_id(), session("newest"), 1_600_000_000); // 2020-09-13 12:26:40
        let run = place.mb(&server, &[]).env("TZ", "XYZ-9").stdin("/list\n").run();
        let lines: Vec<_> = run.stdout.lines().collect();
        let expected = [
            (format!("* {} ", place.project_id()), "2020-09-13", "12:26", "newest"),
            ("  bb ".into(), "2009-02-13", "23:31", "middle"),
            ("  aa ".into(), "2001-09-09", "01:46", "oldest"),
        ];
        assert_eq!(lines.len(), expected.len(), "{run}");
        for (line, (start, date, time, summary)) in lines.iter().zip(expected) {
            assert!(line.starts_with(&start), "{start}{run}");
            let rest = &line[start.len()..];
            for part in [date, time, "7", summary] {
                assert!(rest.contains(part), "no {part} in {rest}{run}");
            }
        }
    }

    #[test]
    fn the_list_shows_what_was_saved_just_now_first() {
        let place = Place::new();
        put_talk(&place, "zz", "old");
        let (_, run) = type_lines(&place, "hello\n/list\n", 1);
        let mine = run.stdout.find(&format!("* {} ", place.project_id())).unwrap_or(usize::MAX);
        assert!(run.stdout.find("  zz ").is_some_and(|at| at > mine), "{run}");
        assert!(run.stdout[mine..].lines().next().unwrap().contains("hello"), "{run}");
    }

    #[test]
    fn a_summary_of_several_lines_takes_one_line_of_the_list() {
        let place = Place::new();
        for (id, summary) in
            [("aa", "one\n* two"), ("bb", "one\r\n* two"), ("cc", "one\u{2028}* two")]
        {
            put(&place, id, json!({"summary": summary, "messages": talk("x")}).to_string(), 0);
        }
        let (_, run) = type_lines(&place, "/list\n/load aa\n", 0);
        let lines: Vec<_> = run.stdout.lines().collect();
        assert!(lines.iter().all(|line| !line.starts_with("* ")), "{run}");
        assert!(lines.len() >= 3 && lines[..3].iter().all(|line| line.contains("one")), "{run}");
    }

    #[test]
    fn an_empty_list_is_no_error() {
        let place = Place::new();
        let (_, run) = type_lines(&place, "/list\n", 0);
        assert!(!run.stdout.contains("unreadable") && !run.stdout.contains("*"), "{run}");
        assert_eq!(run.stderr, "", "{run}");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(place.sessions()).unwrap();
        type_lines(&place, "/list\n", 0);
    }

    #[test]
    fn what_the_list_shows_cannot_control_the_terminal() {
        let place = Place::new();
        let session = json!({"summary": "a\u{1b}[2Jb\u{202e}c\rd\u{7}", "messages": talk("x")});
        put(&place, "evil", session.to_string(), 0);
        let (_, run) = type_lines(&place, "/list\n", 0);
        assert!(run.stdout.contains("a[2Jbcd\n"), "{run}");
    }

    // ---- The home folder

    #[test]
    fn without_a_home_folder_sessions_are_off_with_one_warning() {
        for home in [None, Some("")] {
            let server = Server::start([Reply::text("one"), Reply::text("two")]);
            let place = Place::new();
            let mb = place.mb(&server, &[]).stdin("first\nsecond\n");
            let mb =
                if let Some(home) = home { mb.env("HOME", home) } else { mb.env_remove("HOME") };
            let run = mb.run();
            assert_eq!(run.status, 0, "{run}");
            assert!(run.stdout.contains("two"), "{run}");
            assert_eq!(run.stderr.lines().count(), 1, "{run}");
            assert!(run.stderr.contains("HOME"), "{run}");
            assert!(!place.path(".bantam").exists(), "{run}");
        }
    }

    #[test]
    fn a_home_folder_that_cannot_be_written_stops_no_turn() {
        for home in ["/proc", "/dev/null"] {
            let server = Server::start([Reply::text("one"), Reply::text("two")]);
            let place = Place::new();
            let mb = place.mb(&server, &[]).env("HOME", home);
            let run = mb.stdin("first\n/list\nsecond\n").run();
            assert!(run.stdout.contains("one") && run.stdout.contains("two"), "{run}");
            assert!(!run.stderr.contains("panicked"), "{run}");
            assert_eq!(
                server.requests()[1].roles(),
                ["system", "user", "assistant", "user"],
                "{run}"
            );
        }
    }

    #[test]
    fn loading_the_projects_own_id_is_going_on_with_what_its_file_holds() {
        let (server, place) = (Server::start([Reply::text("ok")]), Place::new());
        let own = place.project_id();
        put_talk(&place, &own, "mine");
        let run = place.run(&server, &[], &format!("/load {own}\nnext\n"));
        assert_eq!(server.requests()[0].messages()[1]["content"], "mine", "{run}");
        assert_eq!(files(&place), [own + ".json"], "{run}");
    }

    #[test]
    fn a_session_that_is_not_loaded_is_named() {
        let (server, place) = (Server::start([]), Place::new());
        put(&place, "broken", "{", 0);
        let run = place.run(&server, &[], "/load broken\n/continue\n");
        assert!(run.stderr.contains("session broken: "), "{run}");
        assert!(run.stderr.contains(&format!("session {}: ", place.project_id())), "{run}");
    }

    mod needs_commands {
        use super::*;

        #[test]
        fn the_files_are_the_projects_and_the_named_ones_and_no_others() {
            let place = Place::new();
            let (_, run) =
                type_lines(&place, "first\n/save named\nsecond\n/save\n/clear\nthird\n", 5);
            let own = place.project_id();
            let mut expected =
                [format!("{own}.json"), format!("{own}-prev.json"), "named.json".into()];
            expected.sort();
            assert_eq!(files(&place), expected, "{run}"); // and no temporary file
        }

        #[test]
        fn it_is_saved_after_every_line_whatever_it_was() {
            let (server, place) = (Server::start([Reply::text("one")]), Place::new());
            let file = place.sessions().join(place.project_id() + ".json");
            let mut live = place.start(&server, &[]);
            for line in
                ["first", "!true", "/help", "/list", "/nosuch", "/cfg model", "/load nosuch"]
            {
                let _ = fs::remove_file(&file);
                live.send(format!("{line}\n"));
                live.wait_until(&format!("it is saved after {line}"), || file.exists());
            }
            assert_eq!(place.session()["messages"].as_array().unwrap().len(), 3);
        }

        #[test]
        fn clear_leaves_the_saved_session_for_continue() {
            let place = Place::new();
            let (requests, run) = type_lines(&place, "apples\n/clear\n/continue\nsecond\n", 2);
            assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{run}");
            assert_eq!(said(&requests[1]), ["apples", "done", "second"], "{run}");
            let (_, run) = type_lines(&place, "third\n/clear\n", 1);
            assert_eq!(place.session()["messages"][1]["content"], "third", "{run}");
        }

        #[test]
        fn without_a_user_message_nothing_is_saved() {
            for lines in [
                "",
                "/quit\n",
                "!echo hi\n",
                "/help\n/cfg\n/list\n",
                "/clear\n",
                "/save\n",
                "/save x\n",
            ] {
                let place = Place::new();
                let (_, run) = type_lines(&place, lines, 0);
                assert_eq!(files(&place), [""; 0], "{run}");
            }
            let place = Place::new();
            put_talk(&place, &place.project_id(), "mine");
            let (_, run) = type_lines(&place, "/help\n/clear\n", 0);
            assert_eq!(place.session()["messages"], talk("mine"), "{run}");
            assert!(run.stdout.contains("/clear"), "{run}");
        }

        #[test]
        fn the_summary_of_a_conversation_is_not_that_of_the_next_one() {
            let server = Server::start([
                Reply::text("one"),
                Reply::text("all about fish"),
                Reply::text("2"),
            ]);
            let place = Place::new();
            let run = place.run(&server, &[], "first\n/save\n/clear\nsecond\n");
            assert_eq!(place.session()["summary"], "second", "{run}");
        }

        #[test]
        fn after_clear_the_next_conversation_is_another() {
            let place = Place::new();
            let (_, run) = type_lines(&place, "apples\n/clear\n!true\n", 1);
            assert!(!prev_exists(&place), "there is no other one yet{run}");
            let (_, run) = type_lines(&place, "/continue\n/clear\npears\n/clear\nplums\nmore\n", 3);
            assert_eq!(prev(&place)[1]["content"], "pears", "{run}");
            assert_eq!(place.session()["messages"][1]["content"], "plums", "{run}");
        }

        #[test]
        fn without_a_home_folder_the_commands_of_sessions_are_no_crash() {
            let server = Server::start([Reply::text("one"), Reply::text("two")]);
            let place = Place::new();
            let lines = "first\n/list\n/continue\n/load x\n/clear\nsecond\n";
            let run = place.mb(&server, &[]).env("HOME", "").stdin(lines).run();
            assert_eq!(run.status, 0, "{run}");
            assert!(!run.stderr.contains("panicked"), "{run}");
            assert_eq!(server.requests()[1].roles(), ["system", "user"], "{run}");
        }
    }

    mod needs_compact {
        use super::*;

        #[test]
        fn what_compact_leaves_can_be_continued() {
            let place = Place::new();
            type_lines(&place, "first\n/compact\n", 2);
            assert_eq!(place.session()["messages"].as_array().unwrap().len(), 2);
            let (requests, run) = type_lines(&place, "/continue\nsecond\n", 1);
            let content = requests[0].messages()[1]["content"].as_str().unwrap();
            assert!(content.contains("done") && content.ends_with("\n\nsecond"), "{content}{run}");
        }

        #[test]
        fn after_compact_and_a_load_that_fails_it_is_the_same_conversation() {
            let place = Place::new();
            let (_, run) = type_lines(&place, "first\n/compact\n/load nosuch\nsecond\n", 3);
            assert_eq!(files(&place), [place.project_id() + ".json"], "{run}");
        }

        #[test]
        fn without_a_conversation_save_and_compact_say_so_and_ask_nothing() {
            for line in ["/save name\n", "/save\n", "/compact\n", "!echo hi\n/compact\n"] {
                let (server, place) = (Server::start([]), Place::new());
                let run = place.run(&server, &[], line);
                assert!(run.stderr.contains("no conversation"), "{run}");
                assert!(!run.stdout.contains("saved"), "{run}");
                assert_eq!((server.requests().len(), files(&place).len()), (0, 0), "{run}");
            }
        }
    }
}
