//! The commands of the interactive mode (§10 of the contract).

#[macro_use]
mod common;

use std::os::unix::fs::PermissionsExt;

use common::*;
use serde_json::{Value, json};

/// What a quiet session prints for this line.
fn quietly(line: &str) -> String {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.config(&server, "quiet=true\nmodel=mmm");
    server.set_models(Reply::json(json!({"data": [{"id": "mmm"}]})));
    let run = place.run(&server, &[], &format!("hello\n{line}\n"));
    let shown = run.stdout.strip_prefix("done\n").map(String::from);
    shown.unwrap_or_else(|| panic!("wanted the answer first{run}"))
}

// ---- !CMD

#[test]
fn a_shell_line_is_run_and_shown_and_does_not_join_the_conversation() {
    let (server, place) = (Server::start([Reply::text("one"), Reply::text("two")]), Place::new());
    let lines = "!echo $((40 + 2)); echo err$((1 + 1)) >&2\nfirst\n!pwd; touch made\nsecond\n";
    let run = place.run(&server, &[], lines);
    assert_eq!(run.status, 0, "{run}");
    for text in ["42\nerr2\n", &format!("{}\n", place.work().display())] {
        assert!(run.stdout.contains(text), "no {text:?}{run}");
    }
    assert!(place.path("made").exists(), "{run}");
    let requests = server.requests();
    assert_eq!(requests[0].roles(), ["system", "user"], "{run}");
    assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{run}");
    let said: Vec<_> = requests[1].messages()[1..].iter().map(text_of).collect();
    assert_eq!(said, ["first", "one", "second"], "{run}");
}

#[test]
fn a_shell_line_alone_sends_and_saves_nothing() {
    let (server, place) = (Server::start([]), Place::new());
    let run = place.run(&server, &[], "!echo hi\n!exit 3\n");
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("hi\n"), "{run}");
    assert!(!place.sessions().join(place.project_id() + ".json").exists(), "{run}");
}

#[test]
fn a_shell_line_does_not_read_the_lines_behind_it() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    let run = place.run(&server, &[], "!cat\n!read x; echo \"got:$x\"\nhello\n");
    assert!(run.stdout.contains("got:\n"), "{run}");
    assert_eq!(server.requests()[0].messages()[1]["content"], "hello", "{run}");
}

#[test]
fn a_shell_line_may_be_continued() {
    let (server, place) = (Server::start([]), Place::new());
    let run = place.run(&server, &[], "!echo a$((1 + 1))\\\necho b$((1 + 2))\n");
    assert!(run.stdout.contains("a2\nb3\n"), "{run}");
}

#[test]
fn the_output_of_a_shell_line_cannot_control_the_terminal() {
    let (server, place) = (Server::start([]), Place::new());
    let run = place.run(&server, &[], "!printf 'a\\033[2Jb\\007c\\rd\\342\\200\\256e\\n'\n");
    assert!(run.stdout.contains("a[2Jbcde\n"), "{run}");
}

// ---- What goes with a part that a port may lack

mod needs_commands {
    use super::*;

    #[test]
    fn help_lists_all_commands() {
        let (server, place) = (Server::start([]), Place::new());
        let run = place.run(&server, &[], "/help\n");
        assert_eq!(run.status, 0, "{run}");
        let all = "/save /continue /cont /list /load /compact /cfg /models ! /help /clear /quit";
        for name in all.split(' ') {
            assert!(run.stdout.contains(name), "no {name}{run}");
        }
    }

    #[test]
    fn an_unknown_command_is_an_error_and_is_not_sent() {
        for line in
            ["/nosuch", "/nosuch with words", "/helpme", "/savethis x", "/usr/bin/env is what?"]
        {
            let (server, place) = (Server::start([Reply::text("done")]), Place::new());
            let run = place.run(&server, &[], &format!("{line}\nhello\n"));
            assert_eq!(run.status, 0, "{run}");
            let word = line.split(' ').next().unwrap();
            assert!(run.stderr.contains(word), "{run}");
            assert!(!run.stdout.contains(word), "{run}");
            assert_eq!(server.requests().len(), 1, "{run}");
            assert_eq!(server.requests()[0].messages()[1]["content"], "hello", "{run}");
        }
    }

    #[test]
    fn clear_goes_back_to_the_system_prompt() {
        let (server, place) =
            (Server::start([Reply::text("one"), Reply::text("two")]), Place::new());
        let run = place.run(&server, &[], "first\n/clear\nsecond\n");
        assert_eq!(run.status, 0, "{run}");
        let requests = server.requests();
        assert_eq!(requests[1].roles(), ["system", "user"], "{run}");
        assert_eq!(requests[1].messages()[0], requests[0].messages()[0], "{run}");
        assert_eq!(requests[1].messages()[1]["content"], "second", "{run}");
    }

    mod needs_quiet {
        use super::*;

        #[test]
        fn quiet_does_not_silence_help() {
            assert!(quietly("/help").contains("/compact"));
        }
    }
}

mod needs_compact {
    use super::*;

    #[test]
    fn compact_asks_for_a_summary_and_starts_over_with_it() {
        let summary = Reply::text("we talked");
        let server = Server::start([Reply::text("one"), summary, Reply::text("two")]);
        let place = Place::new();
        let run = place.run(&server, &[], "first\n/compact\nsecond\n");
        assert_eq!(run.status, 0, "{run}");
        let requests = server.requests();
        assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{run}");
        assert_eq!(requests[1].messages()[1]["content"], "first", "{run}");
        assert_eq!(requests[2].roles(), ["system", "user"], "{run}");
        assert_eq!(requests[2].messages()[0], requests[0].messages()[0], "{run}");
        let content = requests[2].messages()[1]["content"].as_str().unwrap();
        assert!(content.contains("we talked") && content.ends_with("\n\nsecond"), "{run}");
        assert!(!content.contains("first"), "{run}");
    }

    #[test]
    fn without_a_summary_compact_changes_nothing() {
        let touch = ("c1", "shell_exec", r#"{"command":"touch ran"}"#);
        let empty = || json!({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]});
        for reply in [
            Reply::status(401, "no"),
            Reply::json(empty()),
            Reply::text(" \n "),
            Reply::calls(&[touch]),
            Reply::sse(&[&delta(json!({"reasoning_content": "hm"})), &finish("stop"), "[DONE]"]),
        ] {
            let server = Server::start([Reply::text("one"), reply, Reply::text("two")]);
            let place = Place::new();
            let run = place.run(&server, &[], "first\n/compact\nsecond\n");
            assert_eq!(run.status, 0, "{run}");
            assert!(!run.stderr.trim().is_empty(), "{run}");
            let requests = server.requests();
            assert_eq!(requests.len(), 3, "{run}");
            assert_eq!(requests[2].roles(), ["system", "user", "assistant", "user"], "{run}");
            assert_eq!(requests[2].messages()[3]["content"], "second", "{run}");
            assert!(!place.path("ran").exists(), "{run}");
        }
    }

    #[test]
    fn a_summary_that_the_token_limit_cut_off_is_none() {
        let cut = Reply::sse(&[&delta(json!({"content": "we tal"})), &finish("length"), "[DONE]"]);
        let server = Server::start([Reply::text("one"), cut, Reply::text("two")]);
        let place = Place::new();
        let run = place.run(&server, &[], "first\n/compact\nsecond\n");
        assert!(run.stderr.trim() != "", "{run}");
        let requests = server.requests();
        assert_eq!(requests[2].roles(), ["system", "user", "assistant", "user"], "{run}");
        assert_eq!(requests[2].messages()[2]["content"], "one", "{run}");
    }

    mod needs_sessions {
        use super::*;

        #[test]
        fn compact_saves_what_it_leaves() {
            let server = Server::start([Reply::text("one"), Reply::text("we talked")]);
            let place = Place::new();
            let mut live = place.start(&server, &[]);
            live.send("first\n/compact\n");
            server.wait_for_requests(2);
            live.wait_until("it is saved", || {
                let session = place.session();
                session["messages"][1]["content"].as_str().unwrap().contains("we talked")
                    && session["messages"].as_array().unwrap().len() == 2
            });
        }
    }
}

mod needs_cfg {
    use super::*;

    fn names(place: &Place) -> Vec<String> {
        let entries = std::fs::read_dir(place.work()).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    // ---- /cfg: what it shows

    #[test]
    fn cfg_shows_all_settings_or_one() {
        let (server, place) = (Server::start([]), Place::new());
        place.config(&server, "model=mmm\nseed=7\ntimeout=");
        let run = place.run(&server, &["top_p=0.5"], "/cfg\n");
        let shown = |line: &str| run.stdout.lines().any(|l| l.replace(' ', "") == line);
        for line in ["model=mmm", "seed=7", "top_p=0.5", "timeout=300", "shell_timeout=120"] {
            assert!(shown(line), "no {line}{run}");
        }
        let endpoint = format!("endpoint={}", server.url());
        assert!(shown(&endpoint), "{run}");
        let run = place.run(&server, &[], "/cfg model\n");
        assert!(run.stdout.contains("mmm"), "{run}");
        assert!(!run.stdout.contains("seed") && !run.stdout.contains("endpoint"), "{run}");
        assert!(!place.path(".bantam.cfg").exists(), "{run}");
    }

    #[test]
    fn the_key_is_shown_as_its_last_four_characters() {
        let (server, place) = (Server::start([]), Place::new());
        place.config(&server, "api_key=sk-secret-\u{e9}789");
        for line in ["/cfg\n", "/cfg api_key\n"] {
            let run = place.run(&server, &[], line);
            let all = format!("{}{}", run.stdout, run.stderr);
            assert!(all.contains("\u{e9}789"), "{run}");
            assert!(!all.contains("secret") && !all.contains("-\u{e9}"), "{run}");
        }
        let run = place.run(&server, &[], "/cfg api_key sk-hidden-4321\n/cfg api_key\n/cfg\n");
        assert!(run.stdout.contains("4321"), "{run}");
        assert!(!format!("{}{}", run.stdout, run.stderr).contains("hidden"), "{run}");
        assert!(place.read(".bantam.cfg").contains("api_key=sk-hidden-4321\n"), "{run}");
    }

    #[test]
    fn a_key_of_the_environment_is_not_shown_whole() {
        let (server, place) = (Server::start([]), Place::new());
        let mb = place.mb(&server, &[]).env("OPENAI_API_KEY", "sk-secret-6789");
        let run = mb.stdin("/cfg\n/cfg api_key\n").run();
        assert!(!format!("{}{}", run.stdout, run.stderr).contains("secret"), "{run}");
        assert!(run.stdout.contains("api_key"), "{run}");
    }

    // ---- /cfg: what it writes

    /// Runs these lines with this `model.cfg`; nothing is sent.
    fn configure(model_cfg: &str, lines: &str) -> (Place, Run) {
        let place = Place::new();
        place.write("model.cfg", model_cfg);
        let run = place.mb_alone(&[]).stdin(lines).run();
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(place.read("model.cfg"), model_cfg, "{run}");
        (place, run)
    }

    #[test]
    fn setting_a_key_copies_the_configuration_and_puts_one_line_at_its_end() {
        for (before, line, after) in [
            ("a=1\nmodel=x\nb=2\n", "/cfg model y", "a=1\nb=2\nmodel=y\n"),
            ("# seed=1\n\n  a = 1 \n", "/cfg seed 7", "# seed=1\n\n  a = 1 \nseed=7\n"),
            (" seed = 1 \nseed_2=2\n", "/cfg seed 7", "seed_2=2\nseed=7\n"),
            ("\n# note\nseed=1\n\n\n# end\n\n", "/cfg seed 7", "\n# note\n\n\n# end\n\nseed=7\n"),
            ("seed=1#2\nx=#3\n", "/cfg x a # b", "seed=1#2\nx=a # b\n"),
            ("p=1\n", "/cfg p {\"order\": [\"a=b\"]}", "p={\"order\": [\"a=b\"]}\n"),
            ("# gr\u{fc}n\nx=\u{e9}\n", "/cfg seed 7", "# gr\u{fc}n\nx=\u{e9}\nseed=7\n"),
            ("", "/cfg seed 7", "seed=7\n"),
            ("", "/cfg  seed \t 7 ", "seed=7\n"),
        ] {
            let (place, run) = configure(before, &format!("{line}\n"));
            assert_eq!(place.read(".bantam.cfg"), after, "{run}");
            assert_eq!(names(&place), [".bantam.cfg", "model.cfg"], "{run}");
        }
    }

    #[test]
    fn setting_a_key_keeps_the_other_lines_byte_for_byte() {
        let (place, run) = configure("a=1\r\nseed=1\r\nb=2\r\n", "/cfg seed 7\n");
        assert_eq!(place.read(".bantam.cfg").trim_end(), "a=1\r\nb=2\r\nseed=7", "{run}");
        let (place, run) = configure("seed=1\nb=2", "/cfg seed 7\n/cfg c 3\n");
        assert_eq!(place.read(".bantam.cfg").trim_end(), "b=2\nseed=7\nc=3", "{run}");
    }

    #[test]
    fn of_a_repeated_key_all_lines_are_replaced() {
        let (place, run) = configure("seed=1\na=1\n seed =2\n", "/cfg seed 7\n");
        assert_eq!(place.read(".bantam.cfg"), "a=1\nseed=7\n", "{run}");
        let run = place.mb_alone(&[]).stdin("/cfg seed\n").run();
        assert_eq!(run.stdout, "seed=7\n", "{run}");
    }

    #[test]
    fn setting_a_key_without_any_configuration_makes_a_file_of_one_line() {
        let place = Place::new();
        let run = place.mb_alone(&["top_p=0.5"]).stdin("/cfg seed 7\n").run();
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(place.read(".bantam.cfg"), "seed=7\n", "{run}");
        assert_eq!(names(&place), [".bantam.cfg"], "{run}");
    }

    #[test]
    fn an_override_is_not_written_when_another_key_is_set() {
        let place = Place::new();
        place.write("model.cfg", "model=file\n");
        let run = place.mb_alone(&["model=arg", "top_p=0.5"]).stdin("/cfg seed 7\n").run();
        assert_eq!(place.read(".bantam.cfg"), "model=file\nseed=7\n", "{run}");
    }

    #[test]
    fn an_existing_hidden_file_is_changed_and_the_other_is_not_copied() {
        let place = Place::new();
        place.write("model.cfg", "a=1\n");
        place.write(".bantam.cfg", "b=2\nseed=1\n");
        let run = place.mb_alone(&[]).stdin("/cfg seed 7\n/cfg c 3\n").run();
        assert_eq!(place.read(".bantam.cfg"), "b=2\nseed=7\nc=3\n", "{run}");
        assert_eq!(place.read("model.cfg"), "a=1\n", "{run}");
    }

    #[test]
    fn the_written_configuration_is_for_its_owner_alone() {
        let (place, run) = configure("a=1\n", "/cfg api_key sk-1234\n");
        let mode = std::fs::metadata(place.path(".bantam.cfg")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{run}");
    }

    #[test]
    fn a_value_that_the_key_does_not_take_is_refused_and_nothing_is_written() {
        for line in [
            "timeout abc",
            "timeout 12s",
            "shell_timeout nan",
            "shell_timeout inf",
            "max_al_iterations ten",
            "context_window 1,5",
            "context_window true",
            "temperature hot",
            "stream maybe",
            "stream TRUE1",
            "confirm yes please",
            "quiet 0",
        ] {
            let key = line.split(' ').next().unwrap();
            let (place, run) = configure("a=1\n", &format!("/cfg {line}\n/cfg {key}\n"));
            assert!(run.stderr.contains(key), "{run}");
            assert!(!run.stdout.contains(&line.replacen(' ', "=", 1)), "{run}");
            assert_eq!(names(&place), ["model.cfg"], "{run}");
            place.write(".bantam.cfg", "b=2\n");
            let run = place.mb_alone(&[]).stdin(format!("/cfg {line}\n")).run();
            assert_eq!(place.read(".bantam.cfg"), "b=2\n", "{run}");
        }
    }

    #[test]
    fn an_equals_sign_may_stand_between_key_and_value() {
        for (line, after) in [
            ("/cfg seed=7", "a=1\nseed=7\n"),
            ("/cfg a=2", "a=2\n"),
            ("/cfg x=b=c", "a=1\nx=b=c\n"),
            ("/cfg x b=c", "a=1\nx=b=c\n"),
            ("/cfg p={\"order\": [\"a=b\"]}", "a=1\np={\"order\": [\"a=b\"]}\n"),
            ("/cfg stop=a b", "a=1\nstop=a b\n"),
        ] {
            let (place, run) = configure("a=1\n", &format!("{line}\n"));
            assert_eq!(
                (place.read(".bantam.cfg").as_str(), run.stderr.as_str()),
                (after, ""),
                "{run}"
            );
        }
    }

    #[test]
    fn a_setting_with_an_equals_sign_counts_at_once() {
        let (server, place) = (Server::start([Reply::text("one")]), Place::new());
        let run = place.run(&server, &[], "/cfg model=b\n/cfg api_key=sk-hidden-4321\nfirst\n");
        assert_eq!(server.requests()[0].body["model"], "b", "{run}");
        let key = server.requests()[0].header("authorization").map(String::from);
        assert_eq!(key.as_deref(), Some("Bearer sk-hidden-4321"), "{run}");
        assert!(!format!("{}{}", run.stdout, run.stderr).contains("hidden"), "{run}");
    }

    #[test]
    fn a_key_that_is_not_known_is_told() {
        let (place, run) = configure("seed=1\n", "/cfg nosuch\n/cfg seed\n/cfg confrm\n");
        assert_eq!(run.stdout, "seed=1\n", "{run}");
        for key in ["nosuch", "confrm"] {
            assert!(run.stderr.contains(key), "no {key}{run}");
        }
        assert_eq!(names(&place), ["model.cfg"], "{run}");
    }

    #[test]
    fn a_name_or_an_endpoint_that_the_file_may_not_have_is_refused_and_nothing_is_written() {
        for (line, named) in [
            ("/cfg API_KEY sk-1", "API_KEY"),
            ("/cfg api-key=sk-1", "api-key"),
            ("/cfg Model m", "Model"),
            ("/cfg endpoint 127.0.0.1:8080/v1", "endpoint"),
            ("/cfg endpoint=localhost", "endpoint"),
        ] {
            let (place, run) = configure("a=1\n", &format!("{line}\n"));
            assert!(run.stderr.contains(named), "no {named}{run}");
            assert_eq!(names(&place), ["model.cfg"], "{run}");
        }
    }

    // ---- /cfg: at once

    #[test]
    fn a_setting_counts_for_the_next_request() {
        let (server, place) =
            (Server::start([Reply::text("one"), Reply::text("two")]), Place::new());
        place.config(&server, "model=a\napi_key=sk-a\nseed=1");
        let set = "/cfg model b\n/cfg api_key sk-b\n/cfg seed 2\n/cfg bantam_tools_dir /x/y\n";
        let run = place.run(&server, &[], &format!("first\n{set}second\n"));
        assert_eq!(run.status, 0, "{run}");
        let requests = server.requests();
        assert_eq!(requests[0].body["model"], "a", "{run}");
        assert_eq!(requests[1].body["model"], "b", "{run}");
        assert_eq!(requests[1].body["seed"], 2, "{run}");
        assert_eq!(requests[1].header("authorization"), Some("Bearer sk-b"), "{run}");
        let system = requests[1].messages()[0]["content"].as_str().unwrap();
        assert!(system.ends_with("Extra shell tools can be found at /x/y"), "{system}{run}");
        assert_eq!(requests[1].roles(), ["system", "user", "assistant", "user"], "{run}");
    }

    #[test]
    fn another_endpoint_is_asked_at_once() {
        let first = Server::start([Reply::text("one")]);
        let second = Server::start([Reply::text("two")]);
        let place = Place::new();
        let run =
            place.run(&first, &[], &format!("first\n/cfg endpoint {}/\nsecond\n", second.url()));
        assert_eq!(run.status, 0, "{run}");
        assert!(run.stdout.contains("two"), "{run}");
        assert_eq!((first.requests().len(), second.requests().len()), (1, 1), "{run}");
    }

    #[test]
    fn an_endpoint_that_is_set_gets_the_environments_key() {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        let mb = place.mb_alone(&[]).env("OPENAI_API_KEY", "sk-env");
        let run = mb.stdin(format!("/cfg endpoint {}\nhello\n", server.url())).run();
        let key =
            server.requests().first().and_then(|it| it.header("authorization").map(Into::into));
        assert_eq!(key, Some("Bearer sk-env".to_string()), "{run}");
    }

    mod needs_quiet {
        use super::*;

        #[test]
        fn quiet_does_not_silence_cfg() {
            assert_eq!(quietly("/cfg model"), "model=mmm\n");
        }

        #[test]
        fn the_agents_own_keys_are_set_at_once_too() {
            let (server, place) = (Server::start([Reply::text("final")]), Place::new());
            let lines =
                "/cfg shell_timeout 1\n!sleep 300\n/cfg color always\n/cfg quiet true\nhello\n";
            let run = place.run(&server, &[], lines);
            assert!(run.stdout.contains("[timed out after 1s]"), "{run}");
            assert!(run.stdout.contains("final"), "{run}");
            assert!(!run.stdout.contains("...requesting..."), "{run}");
            let file = place.read(".bantam.cfg");
            assert!(file.ends_with("\nshell_timeout=1\ncolor=always\nquiet=true\n"), "{run}");
        }
    }
}

mod needs_quiet {
    use super::*;

    #[test]
    fn quiet_does_not_silence_commands() {
        assert_eq!(quietly("!echo hi"), "hi\n\n\nexit: 0\n");
    }
}

mod needs_models {
    use super::*;

    /// What `/models` prints for this reply, with `b` as the model.
    fn models(reply: Reply) -> Run {
        let (server, place) = (Server::start([]), Place::new());
        server.set_models(reply);
        place.config(&server, "model=b\napi_key=sk-x");
        let run = place.run(&server, &[], "/models\n");
        assert_eq!(run.status, 0, "{run}");
        let request = &server.model_requests()[0];
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("GET", "/v1/models"),
            "{run}"
        );
        assert_eq!(request.header("authorization"), Some("Bearer sk-x"), "{run}");
        run
    }

    #[test]
    fn models_lists_the_ids_and_marks_the_configured_one() {
        let list =
            json!([{"id": "c"}, {"object": "no id"}, {"id": "b", "x": null}, {"id": "a/d:free"}]);
        for reply in
            [json!({"object": "list", "data": list}), json!({"models": list}), list.clone()]
        {
            let run = models(Reply::json(reply));
            assert_eq!(run.stdout, "  c\n* b\n  a/d:free\n", "{run}");
            assert_eq!(run.stderr, "", "{run}");
        }
    }

    #[test]
    fn a_long_list_of_models_is_shown_whole() {
        let entry = |n| json!({"id": format!("m{n}"), "description": "x".repeat(600)});
        let list: Vec<Value> = (0..1000).map(entry).collect();
        let run = models(Reply::json(json!({"data": list})));
        assert_eq!(run.stdout.lines().count(), 1000, "{run}");
        assert_eq!(run.stdout.lines().last(), Some("  m999"), "{run}");
    }

    #[test]
    fn models_that_cannot_be_had_are_an_error_and_the_session_goes_on() {
        for reply in [
            Reply::status(404, "no such page"),
            Reply::status(401, r#"{"error":{"message":"who are you"}}"#),
            Reply::status(200, "<html></html>"),
            Reply::json(json!({"data": 5})),
            Reply::json(json!(null)),
            Reply::status(200, "{\"data\": [").then_close(),
        ] {
            let run = models(reply);
            assert!(!run.stderr.trim().is_empty(), "{run}");
            assert_eq!(run.stdout, "", "{run}");
        }
    }

    mod needs_quiet {
        use super::*;

        #[test]
        fn quiet_does_not_silence_models() {
            assert_eq!(quietly("/models"), "* mmm\n");
        }
    }

    mod needs_cfg {
        use super::*;

        mod needs_token_line {
            use super::*;

            #[test]
            fn another_model_has_its_own_window() {
                let models = json!({"data": [{"id": "a", "context_length": 1000},
        {"id": "b", "context_length": 2000}]});
                let replies =
                    ["one", "two", "three"].map(|text| Reply::text(text).with_usage(100, 0, 5));
                let (server, place) = (Server::start(replies), Place::new());
                server.set_models(Reply::json(models));
                place.config(&server, "model=a\ncontext_window=5000");
                let run = place.run(&server, &[], "1\n/cfg model b\n2\n/cfg model c\n3\n");
                let windows: Vec<_> =
                    run.stdout.lines().filter(|line| line.contains("context: ")).collect();
                assert!(windows[0].contains("context: 100/1000 (10.0%)"), "{run}");
                assert!(windows[1].contains("context: 100/2000 (5.0%)"), "{run}");
                // What is not listed has the configured one.
                assert!(windows[2].contains("context: 100/5000 (2.0%)"), "{run}");
            }
        }
    }
}

mod needs_sessions {
    use super::*;

    mod needs_quiet {
        use super::*;

        #[test]
        fn quiet_does_not_silence_list() {
            assert!(quietly("/list").starts_with("* "));
        }
    }
}
