//! The form of a conversation that every server accepts (§3 of the contract): a check of it, and
//! the same rules as a model, which makes a conversation of prompts and servers' messages.

use serde_json::{Map, Value, json};

/// Stands for any text in what is wanted.
pub const ANY: &str = "<any>";

/// Tells the first rule that a conversation breaks.
pub fn well_formed(messages: &[Value]) -> Result<(), String> {
    let (mut open, mut last) = (Vec::new(), "");
    for (place, message) in messages.iter().enumerate() {
        let at = |rule: &str| format!("message {place}, {message}: {rule}");
        let role = text(&message["role"]);
        require(["system", "user", "assistant", "tool"].contains(&role), &at("no known role"))?;
        require((role == "system") == (place == 0), &at("the first one is system, no other"))?;
        if role == "tool" {
            require(!open.is_empty(), &at("a result, but no call without one"))?;
            let id = open.remove(0);
            require(message["tool_call_id"] == id, &at(&format!("not the result of {id}")))?;
            require(message["content"].is_string(), &at("a result without a text"))?;
        } else {
            require(open.is_empty(), &at(&format!("calls without a result before: {open:?}")))?;
            require(last != role, &at("the same role as before"))?;
            require((last, role) != ("tool", "user"), &at("no (stopped) behind a result"))?;
        }
        if role == "user" {
            require(!text_of(message).is_empty(), &at("no text"))?;
        }
        if role == "assistant" {
            open = ids(message).map_err(|rule| at(&rule))?;
            require(!open.is_empty() || !text_of(message).is_empty(), &at("no text, no calls"))?;
        }
        last = role;
    }
    require(open.is_empty(), &format!("calls without a result at the end: {open:?}"))
}

/// The ids of a message's calls.
fn ids(message: &Value) -> Result<Vec<&str>, String> {
    let mut ids = Vec::new();
    let Some(calls) = message.get("tool_calls") else { return Ok(ids) };
    let calls = calls.as_array().filter(|calls| !calls.is_empty());
    for call in calls.ok_or("tool_calls, but none in it")? {
        let (id, function) = (text(&call["id"]), &call["function"]);
        require(!id.is_empty(), "a call without an id")?;
        require(!ids.contains(&id), "an id twice")?;
        require(!text(&function["name"]).is_empty(), "a call without a name")?;
        require(call.get("index").is_none(), "a call with an index")?;
        let valid = is_object(text(&function["arguments"]));
        require(valid, "arguments that are not the text of a JSON object")?;
        ids.push(id);
    }
    Ok(ids)
}

/// Appends a user's prompt.
pub fn ask(messages: &mut Vec<Value>, prompt: &str) {
    let last = messages.last_mut().unwrap();
    if last["role"] == "user" {
        last["content"] = format!("{}\n\n{prompt}", text_of(last)).into();
        return;
    }
    if last["role"] == "tool" {
        messages.push(json!({"role": "assistant", "content": "(stopped)"}));
    }
    messages.push(json!({"role": "user", "content": prompt}));
}

/// What is stored of a server's message, as `fits` takes it.
pub fn mended(message: &Value) -> Value {
    let mut message = message.clone();
    message["role"] = "assistant".into();
    let (mut calls, mut ids) = (message["tool_calls"].take(), Vec::new());
    for call in calls.as_array_mut().into_iter().flatten() {
        let id = text(&call["id"]).to_string();
        if id.is_empty() || ids.contains(&id) {
            call["id"] = ANY.into();
        }
        ids.push(id);
        let function = &mut call["function"];
        if text(&function["name"]).is_empty() {
            function["name"] = ANY.into();
        }
        let arguments = &mut function["arguments"];
        if !arguments.is_object() && !is_object(text(arguments)) {
            *arguments = "{}".into();
        }
    }
    if !ids.is_empty() {
        message["tool_calls"] = calls;
    }
    message
}

/// Equality, but for `<any>` in a wanted text, for a content in parts where one text is wanted, for
/// arguments whose object is wanted, and for fields that are null, which may as well be missing.
pub fn fits(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (value, Value::String(any)) if any == ANY => !value.is_null() && *value != "",
        (Value::String(text), Value::String(wanted)) => like(text, wanted),
        (Value::String(text), Value::Object(_)) => {
            serde_json::from_str::<Value>(text).is_ok_and(|value| value == *wanted)
        }
        (Value::Array(_), Value::String(text)) => text_of(&json!({"content": value})) == *text,
        (Value::Object(fields), Value::Object(wanted)) => {
            let mut keys = fields.keys().chain(wanted.keys());
            let at = |map: &Map<String, Value>, key| map.get(key).cloned().unwrap_or_default();
            keys.all(|key| fits(&at(fields, key), &at(wanted, key)))
        }
        (Value::Array(values), Value::Array(wanted)) => {
            values.len() == wanted.len() && values.iter().zip(wanted).all(|(v, w)| fits(v, w))
        }
        _ => value == wanted,
    }
}

fn like(text: &str, wanted: &str) -> bool {
    let Some((start, rest)) = wanted.split_once(ANY) else { return text == wanted };
    let Some(text) = text.strip_prefix(start) else { return false };
    rest.is_empty() || text.char_indices().any(|(at, _)| like(&text[at..], rest))
}

/// The text of a message: its content, or that of its content's parts.
pub fn text_of(message: &Value) -> String {
    let parts = message["content"].as_array().into_iter().flatten();
    let parts: String = parts.filter_map(|part| part["text"].as_str()).collect();
    message["content"].as_str().map_or(parts, str::to_string)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok()
}

fn require(condition: bool, rule: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(rule.into()) }
}
