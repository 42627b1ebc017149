//! The token line and the context window (§9 and §10 of the contract).

#[macro_use]
mod common;

use common::*;
use serde_json::{Value, json};

const ECHO: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"echo hi"}"#);

/// Runs one prompt against these replies.
fn ask(script: impl IntoIterator<Item = Reply>) -> Run {
    let server = Server::start(script);
    let run = Place::new().run(&server, &["-"], "hello");
    assert_eq!(run.status, 0, "{run}");
    run
}

/// The token lines of a run.
fn token_lines(run: &Run) -> Vec<&str> {
    run.stdout.lines().filter(|line| line.starts_with("[tokens")).collect()
}

/// A streamed answer with this usage in a chunk of its own.
fn with_usage(usage: Value) -> Reply {
    let last = json!({"choices": [], "usage": usage}).to_string();
    Reply::sse(&[&delta(json!({"content": "done"})), &finish("stop"), &last, "[DONE]"])
}

/// The window that the token line shows, with this reply of `/models` and the configured window of
/// 1000 tokens.
fn window_with(model: &str, models: Reply) -> String {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    server.set_models(models);
    place.config(&server, &format!("context_window=1000\nmodel={model}"));
    let run = place.mb(&server, &["-"]).stdin("hello").limit(30).run();
    wait_until("the models are asked for", || server.model_requests().len() == 1);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
    assert_eq!(token_lines(&run).len(), 1, "{run}");
    let context = token_lines(&run)[0].split_once("| context: 10/").expect("a context").1;
    let (window, percent) = context.split_once(' ').expect("a percentage");
    let expected = 100.0 * 10.0 / window.parse::<f64>().unwrap();
    assert_eq!(percent, format!("({expected:.1}%)]"), "{run}");
    window.to_string()
}

/// Asserts that the token line shows this window. The models are waited for 1 s only: a slow machine
/// may miss them, but not five times.
fn expect_window(expected: &str, model: &str, models: Reply) {
    let tries = if expected == "1000" { 1 } else { 5 };
    let wrong = |_| Some(window_with(model, models.clone())).filter(|window| window != expected);
    let shown: Vec<String> = (0..tries).map_while(wrong).collect();
    assert!(shown.len() < tries, "{shown:?} in place of {expected} for {model}");
}

fn expect_m1_window(expected: &str, models: Value) {
    expect_window(expected, "m1", Reply::json(models));
}

mod needs_token_line {
    use super::*;

    #[test]
    fn the_token_line_has_this_form_and_ends_the_turn() {
        let run = ask([Reply::text("done").with_usage(1420, 1000, 85)]);
        let line = "[tokens: 1420 prompt (1000 cached, 420 uncached) + 85 completion | \
        context: 1420/200000 (0.7%)]";
        assert_eq!(run.stdout.lines().last(), Some(line), "{run}");
        assert!(run.stdout.ends_with(&format!("done\n{line}\n")), "{run}");
    }

    #[test]
    fn the_numbers_of_a_turns_requests_are_added_and_the_context_is_that_of_the_last() {
        let run = ask([
            Reply::calls(&[ECHO]).with_usage(1000, 0, 20),
            Reply::calls(&[ECHO]).with_usage(1100, 900, 30),
            Reply::text("done").with_usage(1200, 1000, 40),
        ]);
        let line = "[tokens: 3300 prompt (1900 cached, 1400 uncached) + 90 completion | \
        context: 1200/200000 (0.6%)]";
        assert_eq!(token_lines(&run), [line], "{run}");
    }

    #[test]
    fn each_turn_is_counted_by_itself() {
        let reply = |text, prompt| Reply::text(text).with_usage(prompt, 0, 1);
        let server = Server::start([reply("one", 1000), reply("two", 3000)]);
        let run = Place::new().run(&server, &[], "first\nsecond\n");
        let line = |prompt, percent| {
            format!(
                "[tokens: {prompt} prompt (0 cached, {prompt} uncached) + 1 completion | \
            context: {prompt}/200000 ({percent}%)]"
            )
        };
        assert_eq!(token_lines(&run), [line(1000, "0.5"), line(3000, "1.5")], "{run}");
    }

    #[test]
    fn cached_tokens_are_found_in_three_places() {
        for (place, cached) in [
            (json!({"prompt_tokens_details": {"cached_tokens": 60}}), 60),
            (json!({"prompt_cache_hit_tokens": 70, "prompt_cache_miss_tokens": 30}), 70),
            (json!({"cache_read_input_tokens": 80, "cache_creation_input_tokens": 5}), 80),
            (json!({"prompt_tokens_details": null, "prompt_cache_hit_tokens": 90}), 90),
            (json!({"prompt_tokens_details": {"cached_tokens": 0}}), 0),
        ] {
            let mut usage =
                json!({"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107});
            usage.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
            let run = ask([with_usage(usage)]);
            let line = format!(
                "[tokens: 100 prompt ({cached} cached, {} uncached) + 7 completion | \
            context: 100/200000 (0.1%)]",
                100 - cached
            );
            assert_eq!(token_lines(&run).len(), 1, "{run}");
            assert_eq!(token_lines(&run)[0].replace("(0.0%)", "(0.1%)"), line, "{run}");
        }
    }

    #[test]
    fn without_cached_tokens_the_bracket_is_left_out() {
        for details in
            [Value::Null, json!({}), json!({"audio_tokens": 3}), json!({"cached_tokens": null})]
        {
            let run = ask([with_usage(json!({"prompt_tokens": 2000, "completion_tokens": 7,
            "total_tokens": 2007, "prompt_tokens_details": details}))]);
            let line = "[tokens: 2000 prompt + 7 completion | context: 2000/200000 (1.0%)]";
            assert_eq!(token_lines(&run), [line], "{run}");
        }
    }

    #[test]
    fn without_any_usage_there_is_no_token_line() {
        let content = delta(json!({"content": "done"}));
        let null =
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": null});
        let whole = json!({"choices": [{"message": {"content": "done"}, "finish_reason": "stop"}]});
        for reply in [
            Reply::sse(&[&content, &finish("stop"), "[DONE]"]),
            Reply::sse(&[&content, &null.to_string(), "[DONE]"]),
            Reply::json(whole),
        ] {
            let run = ask([reply]);
            assert!(run.stdout.contains("done\n") && !run.stdout.contains("[tokens:"), "{run}");
        }
    }

    #[test]
    fn of_the_usages_in_each_chunk_the_last_counts() {
        let growing = |completion: u64, delta: Value| {
            let usage = json!({"prompt_tokens": 2000, "completion_tokens": completion});
            let choice = json!({"index": 0, "delta": delta, "finish_reason": null});
            json!({"choices": [choice], "usage": usage}).to_string()
        };
        let pieces = [
            growing(1, json!({"role": "assistant", "content": "d"})),
            growing(2, json!({"content": "on"})),
            growing(3, json!({"content": "e"})),
            json!({"choices": [{"index": 0, "delta": {}}], "usage": null}).to_string(),
            finish("stop"),
        ];
        let run = ask([Reply::sse(&pieces.each_ref().map(String::as_str)).send(&["[DONE]"])]);
        let line = "[tokens: 2000 prompt + 3 completion | context: 2000/200000 (1.0%)]";
        assert_eq!(token_lines(&run), [line], "{run}");
    }

    #[test]
    fn usage_counts_wherever_a_reply_has_it() {
        let usage = json!({"prompt_tokens": 2000, "completion_tokens": 7});
        let content = delta(json!({"content": "done"}));
        let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage});
        let late = json!({"choices": [{"index": 0, "delta": {"content": ""}}], "usage": usage});
        let alone = json!({"usage": usage});
        let whole = json!({"choices": [{"message": {"content": "done"}}], "usage": usage});
        for reply in [
            Reply::sse(&[&content, &end.to_string(), "[DONE]"]),
            Reply::sse(&[&content, &finish("stop"), &late.to_string(), "[DONE]"]),
            Reply::sse(&[&content, &finish("stop"), &alone.to_string(), "[DONE]"]),
            Reply::json(whole),
        ] {
            let run = ask([reply]);
            let line = "[tokens: 2000 prompt + 7 completion | context: 2000/200000 (1.0%)]";
            assert_eq!(token_lines(&run), [line], "{run}");
        }
    }

    #[test]
    fn a_turn_in_which_only_some_requests_report_usage_has_a_token_line() {
        let silent_call = {
            let function = json!({"name": ECHO.1, "arguments": ECHO.2});
            let call = json!({"index": 0, "id": "c1", "type": "function", "function": function});
            Reply::sse(&[&delta(json!({"tool_calls": [call]})), &finish("tool_calls"), "[DONE]"])
        };
        let silent_end =
            Reply::sse(&[&delta(json!({"content": "done"})), &finish("stop"), "[DONE]"]);
        for script in [
            [silent_call, Reply::text("done").with_usage(2000, 0, 9)],
            [Reply::calls(&[ECHO]).with_usage(2000, 0, 9), silent_end],
        ] {
            let run = ask(script);
            let start = "[tokens: 2000 prompt (0 cached, 2000 uncached) + 9 completion | context: ";
            assert_eq!(token_lines(&run).len(), 1, "{run}");
            assert!(token_lines(&run)[0].starts_with(start), "{run}");
        }
    }

    #[test]
    fn a_turn_that_fails_after_an_answer_has_its_token_line_and_one_before_has_none() {
        let call = Reply::calls(&[ECHO]).with_usage(2000, 0, 9);
        for (script, lines) in
            [(vec![call, Reply::status(400, "no")], 1), (vec![Reply::status(400, "no")], 0)]
        {
            let server = Server::start(script);
            let run = Place::new().run(&server, &["-"], "hello");
            assert_eq!((run.status, token_lines(&run).len()), (1, lines), "{run}");
        }
    }

    #[test]
    fn a_bang_line_has_no_token_line() {
        let server = Server::start([Reply::text("done")]);
        let run = Place::new().run(&server, &[], "hello\n!echo hi\n");
        assert_eq!(token_lines(&run).len(), 1, "{run}");
    }

    #[test]
    fn absurd_counts_are_no_crash() {
        let call = Reply::calls(&[("c", "shell_exec", r#"{"command":"true"}"#)]);
        let server = Server::start([
            call.with_usage(u64::MAX - 9, 0, 9),
            Reply::text("done").with_usage(u64::MAX - 9, 0, 9),
        ]);
        let run = Place::new().run(&server, &["-"], "hello");
        assert_eq!(run.status, 0, "{run}");
        assert!(run.stdout.contains("[tokens: "), "{run}");
    }

    mod needs_models {
        use super::*;

        #[test]
        fn the_models_are_asked_for_at_the_first_token_line_over_the_chats_connection() {
            let script = [
                Reply::status(401, "no"),
                Reply::calls(&[ECHO]),
                Reply::text("one"),
                Reply::text("two"),
            ];
            let (server, place) = (Server::start(script), Place::new());
            server.set_models(Reply::json(json!([{"id": "m1", "context_length": 4096}])));
            place.config(&server, "api_key=sk-1\nmodel=m1");
            let run = place.run(&server, &[], "first\nsecond\nthird\n");
            let (requests, asked) = (server.requests(), server.model_requests());
            assert_eq!((requests.len(), asked.len()), (4, 1), "{run}");
            assert_eq!(
                (asked[0].method.as_str(), asked[0].path.as_str()),
                ("GET", "/v1/models"),
                "{run}"
            );
            assert_eq!(asked[0].header("authorization"), Some("Bearer sk-1"), "{run}");
            assert!(asked[0].at > requests[2].at && asked[0].at < requests[3].at, "{run}");
            let connections: Vec<_> = requests.iter().chain(&asked).map(|r| r.connection).collect();
            assert_eq!(connections, [1; 5], "{run}");
        }

        #[test]
        fn the_window_of_the_models_entry_beats_the_configured_one() {
            let others = [
                json!({"id": "m0", "context_length": 5}),
                json!({"id": "m10", "context_length": 6}),
            ];
            let all = json!([others[0], {"id": "m1", "context_length": 32768}, others[1]]);
            expect_m1_window("32768", json!({"object": "list", "data": all}));
            expect_m1_window("32768", json!({"models": all}));
            expect_m1_window("32768", all);
            let llama = json!({"id": "m1", "meta": {"n_ctx": 4096, "n_ctx_train": 9}});
            expect_m1_window("4096", json!({"models": [{"name": "m1"}], "data": [llama]}));
        }

        #[test]
        fn the_first_positive_number_among_its_fields_is_the_window() {
            let fields = [
                "loaded_context_length",
                "max_model_len",
                "context_length",
                "context_window",
                "max_context_length",
            ];
            for field in fields {
                expect_m1_window("2048", json!([{"id": "m1", field: 2048}]));
            }
            let mut entry = json!({"id": "m1", "meta": {"n_ctx": 12}});
            for (field, tokens) in fields.into_iter().zip([11, 13, 14, 15, 16]).rev() {
                entry[field] = tokens.into();
            }
            for tokens in 11..=16 {
                expect_m1_window(&tokens.to_string(), json!([entry]));
                match tokens {
                    11 => entry["loaded_context_length"] = 0.into(),
                    12 => entry["meta"] = Value::Null,
                    _ => {
                        entry[fields[tokens - 12]] =
                            [json!(null), json!("99"), json!(-1)][tokens % 3].clone()
                    }
                }
            }
            expect_m1_window("1000", json!([entry]));
        }

        #[test]
        fn entries_of_other_models_and_odd_ones_do_not_count() {
            let odd = json!([{"context_length": 1}, {"id": null, "context_length": 2}, "m1", null, 7, [],
        {"id": ["m1"], "context_length": 3}, {"id": "m", "context_length": 4},
        {"id": "org/m1", "context_length": 5}]);
            expect_m1_window("1000", json!({"data": odd}));
            let mut with_it = odd.as_array().unwrap().clone();
            with_it.push(json!({"id": "m1", "context_length": 8192}));
            expect_m1_window("8192", json!({"data": with_it}));
        }

        #[test]
        fn the_entrys_id_may_have_the_prefix_of_google() {
            for (model, id) in [
                ("gemini-3-flash", "models/gemini-3-flash"),
                ("models/gemini-3-flash", "models/gemini-3-flash"),
                ("kilo-auto/free", "kilo-auto/free"),
            ] {
                let models = json!({"data": [{"id": id, "context_length": 1048576}]});
                expect_window("1048576", model, Reply::json(models));
            }
        }

        #[test]
        fn where_the_list_has_one_model_only_it_is_the_one() {
            let only = json!({"id": "/models/llama-3.gguf", "meta": {"n_ctx": 4096}});
            expect_m1_window("4096", json!({"data": [only]}));
            expect_m1_window("4096", json!({"models": [only]}));
            expect_m1_window("4096", json!([only]));
            expect_m1_window("1000", json!([only, {"id": "m2", "context_length": 8192}]));
            expect_m1_window("1000", json!([{"id": "m2"}]));
        }

        #[test]
        fn the_lists_of_real_servers_are_read() {
            for (model, file, window) in [
                ("smollm2-135m", "xllama-01-models", "8192"),
                ("another name", "xllama-01-models", "8192"), // its only model
                ("smol", "litellm-01-models", "1000"),        // which tells no window
            ] {
                let file = format!("{}/tests/wire/{file}.models", env!("CARGO_MANIFEST_DIR"));
                let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
                expect_window(window, model, Reply::raw(bytes));
            }
        }

        #[test]
        fn without_a_list_of_models_the_configured_window_counts_silently() {
            for models in [
                Reply::status(404, "no models"),
                Reply::status(401, r#"{"error":{"message":"no"}}"#),
                Reply::status(500, "broken"),
                Reply::status(200, "<html><body>not here</body></html>"),
                Reply::status(200, ""),
                Reply::status(200, r#"{"data":[{"id":"m1","context_len"#).cut(),
                Reply::status(302, "").header("Location", "/elsewhere"),
                Reply::json(json!({"data": {}})),
                Reply::json(json!("m1")),
                Reply::status(200, "").reset(),
            ] {
                expect_window("1000", "m1", models);
            }
        }

        #[test]
        fn a_list_of_600_kb_is_read_to_its_end() {
            let entry =
                |n: usize| json!({"id": format!("other-{n}"), "description": "x".repeat(1000)});
            let mut all: Vec<Value> = (0..600).map(entry).collect();
            all.push(json!({"id": "m1", "context_length": 65536}));
            let list = json!({"data": all});
            assert!(list.to_string().len() > 600_000);
            expect_m1_window("65536", list);
        }

        #[test]
        fn a_list_that_comes_a_little_later_than_the_reply_is_waited_for() {
            let models = json!({"data": [{"id": "m1", "context_length": 65536}]}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", models.len());
            expect_window("65536", "m1", Reply::hang().pause(200).send(&[&(head + &models)]));
        }

        #[test]
        fn a_list_that_does_not_come_holds_the_turn_for_a_moment_only() {
            let begun = Reply::status(200, r#"{"data":[{"id":"m1","#).stall();
            for models in [Reply::hang(), begun] {
                expect_window("1000", "m1", models); // within a run's limit, which `timeout` is beyond
            }
        }

        #[test]
        fn a_list_that_drips_holds_the_turn_for_a_moment_only_and_its_connection_is_closed() {
            let list = json!([{"id": "m1", "context_length": 65536}]).to_string();
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n".to_string() + &list;
            let drop_by_drop = |drop: &str| {
                (0..1000)
                    .fold(Reply::hang().send(&[&head]), |reply, _| reply.pause(100).send(&[drop]))
            };
            let nul = Reply::hang().send(&[&head, "\0"]); // no byte of a list, and no end behind it
            for models in [drop_by_drop(" "), drop_by_drop(&" ".repeat(2000)), Reply::hang(), nul] {
                let (server, place) =
                    (Server::start([Reply::text("one"), Reply::text("two")]), Place::new());
                server.set_models(models);
                place.config(&server, "context_window=1000\nmodel=m1");
                let mut live = place.start(&server, &[]);
                live.send("first\n");
                live.wait_for_stdout("| context: 10/1000 (1.0%)]\n");
                server.wait_for_end(server.model_requests()[0].connection);
                live.send("second\n");
                live.wait_for_stdout("| context: 10/1000 (1.0%)]\n");
                live.close_stdin();
                let run = live.finish();
                assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run}");
                assert_eq!(server.model_requests().len(), 1, "{run}");
            }
        }

        #[test]
        fn a_list_that_does_not_come_holds_no_tool_call_and_no_later_turn() {
            let script = [
                Reply::calls(&[ECHO]),
                Reply::text("one"),
                Reply::text("two"),
                Reply::text("three"),
            ];
            let server = Server::start(script);
            server.set_models(Reply::hang());
            let run = Place::new().mb(&server, &[]).stdin("first\nsecond\nthird\n").limit(30).run();
            assert_eq!((run.status, token_lines(&run).len()), (0, 3), "{run}");
            assert!(!server.model_requests().is_empty(), "{run}");
        }

        mod needs_quiet {
            use super::*;

            #[test]
            fn with_quiet_the_models_are_never_asked_for() {
                let (server, place) =
                    (Server::start([Reply::text("one"), Reply::text("two")]), Place::new());
                place.config(&server, "quiet=true");
                let run = place.run(&server, &[], "first\nsecond\n");
                assert_eq!(
                    (server.requests().len(), server.model_requests().len()),
                    (2, 0),
                    "{run}"
                );
            }
        }
    }
}
