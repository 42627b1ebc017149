//! What mb sends: the request's address, headers and body (§2, §3 and §4 of the contract).

#[macro_use]
mod common;

use common::*;
use serde_json::{Value, json};

const ECHO: (&str, &str, &str) = ("c1", "shell_exec", r#"{"command":"echo hi"}"#);

/// The request of one prompt under this configuration.
fn request_with(lines: &str, args: &[&str]) -> Request {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.config(&server, lines);
    let run = place.run(&server, &[&["-"], args].concat(), "hello");
    assert_eq!(run.status, 0, "{run}");
    server.requests().remove(0)
}

fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort();
    keys
}

// ---- Address and headers

#[test]
fn a_prompt_is_posted_as_json_with_its_length() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    let run = place.run(&server, &["-"], "gr\u{fc}\u{df}e \u{1f389}");
    assert_eq!(run.status, 0, "{run}");
    let request = &server.requests()[0];
    assert_eq!(request.method, "POST");
    assert_eq!(request.path, "/v1/chat/completions");
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("user-agent"), Some("Mozilla/5.0 (compatible; Bantam/1.0)"));
    assert_eq!(request.header("content-length"), Some(request.bytes.to_string().as_str()));
    assert_eq!(request.header("transfer-encoding"), None);
    assert_eq!(request.messages()[1]["content"], "gr\u{fc}\u{df}e \u{1f389}");
}

#[test]
fn without_a_key_there_is_no_authorization() {
    assert_eq!(request_with("", &[]).header("authorization"), None);
    assert_eq!(request_with("api_key=", &[]).header("authorization"), None);
}

#[test]
fn the_key_is_sent_as_a_bearer_token() {
    let bearer = |lines, args: &[&str]| {
        request_with(lines, args).header("authorization").map(str::to_string)
    };
    assert_eq!(bearer("api_key=sk-file", &[]).as_deref(), Some("Bearer sk-file"));
    assert_eq!(bearer("  api_key =  sk-file \r", &[]).as_deref(), Some("Bearer sk-file"));
    assert_eq!(bearer("api_key=sk-file", &["api_key=sk-arg"]).as_deref(), Some("Bearer sk-arg"));
}

#[test]
fn the_key_comes_from_the_environment_where_the_configuration_has_none() {
    for (lines, bearer) in [
        ("", "Bearer sk-env"),
        ("api_key=", "Bearer sk-env"),
        ("api_key=sk-file", "Bearer sk-file"),
    ] {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        place.config(&server, lines);
        let run = place.mb(&server, &["-"]).env("OPENAI_API_KEY", "sk-env").stdin("hello").run();
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(server.requests()[0].header("authorization"), Some(bearer), "{run}");
    }
}

#[test]
fn an_empty_key_in_the_environment_is_none() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    let run = place.mb(&server, &["-"]).env("OPENAI_API_KEY", "").stdin("hello").run();
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(server.requests()[0].header("authorization"), None, "{run}");
}

#[test]
fn a_slash_or_the_pasted_path_at_the_end_of_the_endpoint_is_dropped() {
    for end in ["", "/", "/chat/completions", "/chat/completions/"] {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        place.write("model.cfg", format!("endpoint={}{end}\n", server.url()));
        let run = place.run(&server, &["-"], "hello");
        assert_eq!(run.status, 0, "{run}");
        assert_eq!(server.requests()[0].path, "/v1/chat/completions", "{run}");
    }
}

// ---- The body

#[test]
fn the_conversation_begins_with_the_system_prompt_and_the_users() {
    let request = request_with("", &[]);
    assert_eq!(request.roles(), ["system", "user"]);
    assert_eq!(request.messages()[1], json!({"role": "user", "content": "hello"}));
    let system = request.messages()[0]["content"].as_str().unwrap();
    for word in ["shell_exec", "write_file", "AGENTS.md", "/work", std::env::consts::OS] {
        assert!(system.to_lowercase().contains(&word.to_lowercase()), "no {word} in: {system}");
    }
}

#[test]
fn both_tools_are_offered_in_the_function_shape() {
    let tools = request_with("", &[]).body["tools"].clone();
    let cases = [
        ("shell_exec", vec!["command"], vec!["command"]),
        ("write_file", vec!["content", "del_bytes", "offset", "path"], vec!["content", "path"]),
    ];
    assert_eq!(tools.as_array().unwrap().len(), cases.len());
    for (name, parameters, required) in cases {
        let named = |tool: &&Value| tool["function"]["name"] == name;
        let tool = tools.as_array().unwrap().iter().find(named).expect(name);
        assert_eq!(tool["type"], "function");
        assert!(tool["function"]["description"].is_string());
        let schema = &tool["function"]["parameters"];
        assert_eq!(schema["type"], "object");
        assert_eq!(keys(&schema["properties"]), parameters);
        let mut listed: Vec<_> =
            schema["required"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        listed.sort();
        assert_eq!(listed, required);
        for (name, property) in schema["properties"].as_object().unwrap() {
            let integer = ["offset", "del_bytes"].contains(&name.as_str());
            assert_eq!(property["type"], if integer { "integer" } else { "string" }, "{name}");
        }
    }
}

#[test]
fn without_streaming_the_body_says_so_and_a_json_reply_is_shown() {
    let message = json!({"role": "assistant", "content": "all at once"});
    let reply = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let (server, place) = (Server::start([Reply::json(reply)]), Place::new());
    place.config(&server, "stream=false");
    let run = place.run(&server, &["-"], "hello");
    assert_eq!(run.status, 0, "{run}");
    assert!(run.stdout.contains("all at once"), "{run}");
    let body = &server.requests()[0].body;
    assert_eq!(body["stream"], false, "{run}");
    assert_eq!(body.get("stream_options"), None, "{run}");
}

#[test]
fn the_agents_own_keys_are_never_sent() {
    let key = unforeseeable();
    let own = "color=never\ntimeout=77\nshell_timeout=78\nmax_al_iterations=79\n\
        context_window=80000\nbantam_tools_dir=/tmp\nconfirm=false\nquiet=true";
    let body = request_with(&format!("api_key={key}\n{own}"), &[]).body;
    for line in own.lines() {
        let own = line.split('=').next().unwrap();
        assert_eq!(body.get(own), None, "{own}");
    }
    assert!(!body.to_string().contains(&key), "{body}");
}

#[test]
fn all_other_keys_are_forwarded_as_json_where_they_are_json() {
    let lines = "reasoning_effort=high\nmax_tokens=100\nprovider={\"order\":[\"a\"],\"x\":null}\n\
        stop=[\"a\",\"b\"]\nlogprobs=true\nuser=\"quoted\"\nsuffix= a # b \nseed={broken\ntop_p=.5";
    let body = request_with(lines, &[]).body;
    assert_eq!(body["reasoning_effort"], "high");
    assert_eq!(body["max_tokens"], 100);
    assert_eq!(body["provider"], json!({"order": ["a"], "x": null}));
    assert_eq!(body["stop"], json!(["a", "b"]));
    assert_eq!(body["logprobs"], true);
    assert_eq!(body["user"], "quoted");
    assert_eq!(body["suffix"], "a # b");
    assert_eq!(body["seed"], "{broken");
    assert_eq!(body["top_p"], ".5");
}

#[test]
fn the_model_is_always_a_string() {
    for name in ["123", "true", "null", "{\"a\":1}", "org/name:free"] {
        assert_eq!(request_with(&format!("model={name}"), &[]).body["model"], name);
    }
}

#[test]
fn the_temperature_is_a_number_and_can_be_left_out() {
    assert_eq!(request_with("temperature=0", &[]).body["temperature"], 0);
    assert_eq!(request_with("temperature=1.25", &[]).body["temperature"], 1.25);
    assert_eq!(request_with("temperature=", &[]).body.get("temperature"), None);
    assert_eq!(request_with("", &["temperature="]).body.get("temperature"), None);
}

#[test]
fn a_key_set_to_nothing_takes_its_default() {
    let body = request_with("model=\ntemperature=1\ntimeout=\ncontext_window=", &[]).body;
    assert_eq!(body["model"], "kilo-auto/free");
}

#[test]
fn an_override_wins_for_this_run_and_is_never_written() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.config(&server, "model=file");
    let before = place.read("model.cfg");
    let run = place.run(&server, &["model=arg", "-", "seed=7", "note=a=b"], "hello");
    assert_eq!(run.status, 0, "{run}");
    let body = &server.requests()[0].body;
    assert_eq!(body["model"], "arg", "{run}");
    assert_eq!(body["seed"], 7, "{run}");
    assert_eq!(body["note"], "a=b", "{run}");
    assert_eq!(place.read("model.cfg"), before, "{run}");
    assert!(!place.path(".bantam.cfg").exists(), "{run}");
}

#[test]
fn of_two_configuration_files_the_hidden_one_counts_alone() {
    let (server, place) = (Server::start([Reply::text("done")]), Place::new());
    place.write("model.cfg", "endpoint=http://127.0.0.1:1\nmodel=wrong\nseed=1\n");
    place.write(".bantam.cfg", format!("endpoint={}\nmodel=right\n", server.url()));
    let run = place.run(&server, &["-"], "hello");
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(server.requests()[0].body["model"], "right", "{run}");
    assert_eq!(server.requests()[0].body.get("seed"), None, "{run}");
}

#[test]
fn comments_blanks_crlf_and_repeated_keys_are_understood() {
    let lines = "# model=comment\n\n  model  =  first  \r\n   \r\nmodel=a#b\r\n  # seed=1\r\n";
    let body = request_with(lines, &[]).body;
    assert_eq!(body["model"], "a#b");
    assert_eq!(body.get("seed"), None);
}

#[test]
fn the_tools_folder_ends_the_system_prompt_and_the_environment_wins() {
    let end = |dir: Option<&str>| {
        let (server, place) = (Server::start([Reply::text("done")]), Place::new());
        place.config(&server, "bantam_tools_dir=/from/file");
        let mb = place.mb(&server, &["-"]).stdin("hello");
        let mb = if let Some(dir) = dir { mb.env("BANTAM_TOOLS_DIR", dir) } else { mb };
        assert_eq!(mb.run().status, 0);
        let system = server.requests()[0].messages()[0]["content"].clone();
        system.as_str().unwrap().trim_end().lines().last().unwrap().to_string()
    };
    assert_eq!(end(None), "Extra shell tools can be found at /from/file");
    assert_eq!(end(Some("/from/env")), "Extra shell tools can be found at /from/env");
    let system = request_with("", &[]).messages()[0]["content"].clone();
    assert!(!system.as_str().unwrap().lines().any(|line| line.starts_with("Extra shell tools")));
}

#[test]
fn each_request_repeats_the_one_before_and_adds_to_it() {
    let call = || Reply::calls(&[ECHO]);
    let server = Server::start([call(), Reply::text("one"), call(), Reply::text("two")]);
    let run = Place::new().run(&server, &[], "first\nsecond\n");
    let requests = server.requests();
    assert_eq!(requests.len(), 4, "{run}");
    for pair in requests.windows(2) {
        let [before, after] = [pair[0].messages(), pair[1].messages()];
        assert!(after.len() > before.len(), "{run}");
        assert_eq!(&after[..before.len()], before, "{run}");
    }
    let roles = ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool"];
    assert_eq!(requests[3].roles(), roles, "{run}");
}

// ---- Connections

#[test]
fn a_turn_of_21_requests_uses_one_connection() {
    let calls = (0..20).map(|_| Reply::calls(&[ECHO]));
    let server = Server::start(calls.chain([Reply::text("done")]));
    let run = Place::new().run(&server, &["-"], "hello");
    assert_eq!(run.status, 0, "{run}");
    let requests = server.requests();
    assert_eq!(requests.len(), 21, "{run}");
    assert!(requests.iter().all(|r| r.connection == requests[0].connection), "{run}");
}

/// Runs mb with these variables for an endpoint that only the proxy can reach: nothing listens
/// there. `PROXY` in a value is the proxy's address.
fn through_proxy(variables: &[(&str, &str)]) -> Vec<String> {
    let (proxy, place) = (Server::start([Reply::text("done")]), Place::new());
    let mut mb = place.mb_alone(&["-", "endpoint=http://127.0.0.2:9/v1"]).stdin("hello");
    for (name, value) in variables {
        mb = mb.env(name, &value.replace("PROXY", &proxy.address()));
    }
    let run = mb.run();
    assert_eq!(run.status, 0, "{run}");
    assert_eq!(proxy.requests().len(), 1, "{run}");
    proxy.tunnels()
}

// ---- What needs more than the core

mod needs_streaming {
    use super::*;

    #[test]
    fn the_body_has_these_keys_and_no_others() {
        let body = request_with("", &[]).body;
        let all = ["messages", "model", "stream", "stream_options", "temperature", "tools"];
        assert_eq!(keys(&body), all);
        assert_eq!(body["model"], "kilo-auto/free");
        assert_eq!(body["temperature"], 0.7);
        assert_eq!(body["stream"], true);
        assert_eq!(body["stream_options"], json!({"include_usage": true}));
    }
}

mod needs_models {
    use super::*;

    mod needs_token_line {
        use super::*;

        #[test]
        fn the_models_path_stands_in_the_place_of_the_chats() {
            for end in ["", "/", "/chat/completions", "/chat/completions/"] {
                let (server, place) = (Server::start([Reply::text("done")]), Place::new());
                place.write("model.cfg", format!("endpoint={}{end}\n", server.url()));
                let run = place.run(&server, &["-"], "hello");
                wait_until("the models are asked for", || !server.model_requests().is_empty());
                assert_eq!(server.model_requests()[0].path, "/v1/models", "{run}");
            }
        }
    }
}

mod needs_retries {
    use super::*;

    #[test]
    fn the_turns_of_a_session_and_its_errors_share_a_connection() {
        let server = Server::start([
            Reply::text("one"),
            Reply::status(400, "no"),
            Reply::status(503, "busy"),
            Reply::json(json!({"choices": [{"message": {"content": "two"}}]})),
            Reply::text("three").with_length(),
            Reply::text("four"),
        ]);
        let run = Place::new().run(&server, &[], "first\nsecond\nthird\nfourth\nfifth\n");
        let requests = server.requests();
        assert_eq!(requests.len(), 6, "{run}");
        assert!(requests.iter().all(|r| r.connection == requests[0].connection), "{run}");
    }
}

mod needs_proxy {
    use super::*;

    #[test]
    fn a_proxy_of_the_environment_is_used() {
        for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
            assert_eq!(through_proxy(&[(name, "http://PROXY")])[0], "127.0.0.2:9", "{name}");
        }
    }

    #[test]
    fn a_socks_proxy_is_used_with_or_without_its_scheme_and_first() {
        let http = ("HTTP_PROXY", "http://127.0.0.1:1");
        for (name, value) in [
            ("SOCKS_PROXY", "socks5://PROXY"),
            ("SOCKS_PROXY", "PROXY"),
            ("socks_proxy", "PROXY"),
            ("socks_proxy", "socks5://PROXY"),
        ] {
            assert_eq!(through_proxy(&[(name, value), http])[0], "127.0.0.2:9", "{name}={value}");
        }
    }

    #[test]
    fn a_local_endpoint_needs_no_proxy() {
        for host in ["127.0.0.1", "localhost"] {
            let (server, place) = (Server::start([Reply::text("done")]), Place::new());
            place.write(
                "model.cfg",
                format!("endpoint={}\n", server.url().replace("127.0.0.1", host)),
            );
            let mb = place.mb(&server, &["-"]).stdin("hello").env("SOCKS_PROXY", "127.0.0.1:1");
            let mb =
                mb.env("HTTP_PROXY", "http://127.0.0.1:1").env("ALL_PROXY", "http://127.0.0.1:1");
            let run = mb.run();
            assert_eq!(run.status, 0, "{run}");
            assert_eq!(server.tunnels(), Vec::<String>::new(), "{run}");
            assert_eq!(server.requests().len(), 1, "{run}");
        }
    }

    #[test]
    fn without_any_configuration_the_default_endpoint_is_asked() {
        let (proxy, place) = (Server::start([]), Place::new());
        let mb = place.mb_alone(&["-"]).env("HTTPS_PROXY", &format!("http://{}", proxy.address()));
        let mut live = mb.start();
        live.send("hello");
        live.close_stdin();
        wait_until("the proxy is asked", || !proxy.tunnels().is_empty());
        assert_eq!(proxy.tunnels()[0], "api.kilo.ai:443");
        live.signal(libc::SIGINT);
        assert_eq!(live.finish().status, 130);
    }

    mod needs_retries {
        use super::*;

        #[test]
        fn a_host_that_the_environment_exempts_is_asked_directly() {
            let (proxy, place) = (Server::start([]), Place::new());
            let mb = place.mb_alone(&["-", "endpoint=http://127.0.0.2:9/v1"]);
            let mb = mb.env("HTTP_PROXY", &format!("http://{}", proxy.address()));
            let mut live = mb.env("NO_PROXY", "127.0.0.2").start();
            live.send("hello");
            live.close_stdin();
            live.wait_for_stderr("[retry 1/9 in 1s: ");
            assert_eq!(proxy.tunnels(), Vec::<String>::new());
            live.signal(libc::SIGINT);
            assert_eq!(live.finish().status, 130);
        }
    }
}
