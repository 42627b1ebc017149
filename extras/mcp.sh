# shellcheck shell=sh
# MCP's Streamable HTTP with curl and jq, for scripts that source this file. They set mcp_url,
# and mcp_header if a header with a key is to go with each request. Both reach curl over its
# standard input: the command line can be read by others.

mcp_url='' mcp_header='' mcp_session='' mcp_version='' mcp_id=0

# fail MESSAGE [STATUS]: one line on standard error, and the end.
fail() {
  printf '%s: %s\n' "${0##*/}" "$(printf %s "$1" | tr -s '[:cntrl:]' ' ' | cut -c 1-300)" >&2
  exit "${2:-1}"
}

# mcp_post MESSAGE: sets reply to all that comes: headers, body, and how it ended.
mcp_post() {
  reply=$(
    printf 'url = "%s"\nheader = "%s"\n' "$mcp_url" "$mcp_header" |
      curl --config - --silent --include --max-time "${MCP_TIMEOUT:-30}" --data-binary "$1" \
        --header 'Content-Type: application/json' \
        --header 'Accept: application/json, text/event-stream' \
        --header "Mcp-Session-Id: $mcp_session" \
        --header "MCP-Protocol-Version: $mcp_version" \
        --write-out '\nstatus: HTTP %{http_code} %{errormsg}' 2>&1
  )
}

# mcp_request METHOD PARAMS: sets answer to the JSON that answers.
# Headers and the fields of server-sent events are "name: value" lines: without them, and
# without "data:", every reply is JSON. One that the timeout cuts off counts as far as it came.
mcp_request() {
  mcp_id=$((mcp_id + 1))
  mcp_post "{\"jsonrpc\": \"2.0\", \"id\": $mcp_id, \"method\": \"$1\", \"params\": $2}"
  answer=$(printf '%s\n' "$reply" | sed 's/^data://; /^HTTP\//d; /^[^"{[]*:/d' |
    jq "select(.error or .id == $mcp_id and .method == null)" 2>/dev/null)
  [ -n "$answer" ] || fail "no answer: ${reply##*status: }"
  error=$(printf '%s\n' "$answer" | jq -r '.error | .message? // . // empty')
  [ -z "$error" ] || fail "$error"
}

# mcp_start: begins a session.
mcp_start() {
  for tool in curl jq; do
    command -v $tool >/dev/null || fail "$tool is missing"
  done
  mcp_request initialize '{"protocolVersion": "2025-06-18", "capabilities": {},
    "clientInfo": {"name": "mb-extras", "version": "1"}}'
  mcp_version=$(printf '%s\n' "$answer" | jq -r '.result.protocolVersion // empty')
  mcp_session=$(printf '%s\n' "$reply" |
    sed -n 's/^[Mm][Cc][Pp]-[Ss]ession-[Ii]d: *//p' | tr -d '\r')
  mcp_post '{"jsonrpc": "2.0", "method": "notifications/initialized"}'
}

# mcp_call TOOL ARGUMENTS: sets text to what the tool says.
mcp_call() {
  mcp_request tools/call "{\"name\": \"$1\", \"arguments\": $2}"
  text=$(printf '%s\n' "$answer" | jq -r '.result.content[]?.text? // empty')
  [ -n "$text" ] || fail 'the answer has no text'
  [ "$(printf '%s\n' "$answer" | jq .result.isError)" != true ] || fail "$text"
}
