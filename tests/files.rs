//! What `write_file` does to files, and what it tells (§7 of the contract).

#[macro_use]
mod common;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::*;
use serde_json::json;

/// Starts mb in this place with these calls of `write_file` as its turn; returns their results.
fn write_with(place: &Place, calls: &[impl ToString], setup: fn()) -> Vec<String> {
    write_through(place, &[], calls, setup)
}

/// The same through another program.
fn write_through(
    place: &Place,
    program: &[&str],
    calls: &[impl ToString],
    setup: fn(),
) -> Vec<String> {
    let texts: Vec<String> = calls.iter().map(ToString::to_string).collect();
    let ids: Vec<String> = (0..calls.len()).map(|n| format!("c{n}")).collect();
    let calls = ids.iter().zip(&texts).map(|(id, text)| (id.as_str(), "write_file", text.as_str()));
    let calls = Reply::calls(&calls.collect::<Vec<_>>());
    let server = Server::start([calls, Reply::text("done")]);
    let endpoint = format!("endpoint={}", server.url());
    let mb = place.through(program, &server, &["-", &endpoint]);
    let run = mb.stdin("do it").setup(setup).run();
    assert_eq!(run.status, 0, "{run}");
    let tools = server.requests()[1].messages()[3..].to_vec();
    assert_eq!(tools.len(), texts.len(), "{run}");
    tools.iter().map(|tool| tool["content"].as_str().unwrap().into()).collect()
}

/// The result of one call.
fn write(place: &Place, call: impl ToString) -> String {
    write_with(place, &[call], || ()).remove(0)
}

/// Lets a call fail, and looks whether it changed anything.
fn refused(place: &Place, call: impl ToString) -> String {
    let (before, call) = (listing(&place.work()), call.to_string());
    let result = write(place, &call);
    assert!(result.starts_with("error: "), "{call}: {result}");
    assert_eq!(listing(&place.work()), before, "{call}: {result}");
    result
}

/// All files below a folder but mb's configuration, with kind, mode and text.
fn listing(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, data) = (entry.path(), entry.metadata().unwrap());
        let text = if data.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let text = String::from_utf8_lossy(&text).into_owned();
        all.push(format!("{} {:o} {text}", path.display(), data.mode()));
        if data.is_dir() {
            all.extend(listing(&path));
        }
    }
    all.retain(|line| !line.contains("/model.cfg "));
    all.sort();
    all
}

fn mode(place: &Place, name: &str) -> u32 {
    fs::metadata(place.path(name)).unwrap().mode() & 0o7777
}

fn set_mode(place: &Place, name: &str, mode: u32) {
    fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
}

// ---- Writing

#[test]
fn a_new_file_is_created_with_its_parent_folders() {
    let place = Place::new();
    let call = |path: &str| json!({"path": path, "content": "hello\n"});
    for path in ["new.txt", "a/b/c/new.txt", "./a/other.txt", "with space/\u{fc}.txt"] {
        let told = format!("wrote 6 bytes to {path} (6 bytes in all)");
        assert_eq!(write(&place, call(path)), told);
        assert_eq!(place.read(path), "hello\n");
    }
    let path = place.path("absolute/new.txt");
    let path = path.to_str().unwrap();
    assert_eq!(write(&place, call(path)), format!("wrote 6 bytes to {path} (6 bytes in all)"));
    assert_eq!(place.read("absolute/new.txt"), "hello\n");
}

#[test]
fn the_defaults_put_the_content_in_front() {
    let place = Place::new();
    place.write("f", "old\n");
    let result = write(&place, json!({"path": "f", "content": "new\n"}));
    assert_eq!(result, "wrote 4 bytes to f (8 bytes in all)");
    assert_eq!(place.read("f"), "new\nold\n");
}

#[test]
fn bytes_are_deleted_and_the_content_is_inserted_at_the_offset() {
    for (offset, del_bytes, content, after) in [
        (0, 0, "X", "X0123456789"),
        (0, 4, "X", "X456789"),
        (3, 0, "XY", "012XY3456789"),
        (3, 4, "XY", "012XY789"),
        (3, 7, "", "012"),
        (3, 8, "XY", "012XY"), // past the end
        (9, 99, "", "012345678"),
        (10, 0, "XY", "0123456789XY"), // appended
        (10, 5, "XY", "0123456789XY"),
        (0, 10, "XY", "XY"), // replaced
        (0, 999_999_999, "XY", "XY"),
        (4, u64::MAX / 2, "", "0123"),
        (4, u64::MAX, "", "0123"),
        (0, 10, "", ""),
    ] {
        let place = Place::new();
        place.write("f", "0123456789");
        let call = json!({"path": "f", "content": content, "offset": offset,
            "del_bytes": del_bytes});
        let told = format!("wrote {} bytes to f ({} bytes in all)", content.len(), after.len());
        assert_eq!(write(&place, call.clone()), told, "{call}");
        assert_eq!(place.read("f"), after, "{call}");
    }
}

/// Numbers that a word of 32 or 64 bits does not hold, as JSON has them.
const VAST: [&str; 7] = [
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "1e30",
    r#""4294967299""#,
    r#""99999999999999999999999999""#,
];

#[test]
fn to_delete_more_than_any_file_has_deletes_to_the_end() {
    for number in VAST {
        let place = Place::new();
        place.write("f", "0123456789");
        let call = format!(r#"{{"path":"f","content":"X","offset":4,"del_bytes":{number}}}"#);
        assert_eq!(write(&place, &call), "wrote 1 bytes to f (5 bytes in all)", "{call}");
        assert_eq!(place.read("f"), "0123X", "{call}");
    }
}

#[test]
fn an_offset_past_any_files_end_is_told_as_such() {
    for number in VAST {
        let place = Place::new();
        place.write("f", "0123456789");
        let call = format!(r#"{{"path":"f","content":"X","offset":{number},"del_bytes":1}}"#);
        let told = refused(&place, &call);
        assert!(told.contains("offset"), "{call}: {told}");
        assert!(!told.contains("integer"), "{call}: {told}"); // it is one
    }
}

#[test]
fn a_whole_number_may_be_written_with_a_fraction() {
    for (offset, del_bytes, after) in
        [("3.0", "4.0", "012X789"), ("0.0", "1e1", "X"), ("1e1", "0", "0123456789X")]
    {
        let place = Place::new();
        place.write("f", "0123456789");
        let call =
            format!(r#"{{"path":"f","content":"X","offset":{offset},"del_bytes":{del_bytes}}}"#);
        let told = format!("wrote 1 bytes to f ({} bytes in all)", after.len());
        assert_eq!(write(&place, &call), told, "{call}");
        assert_eq!(place.read("f"), after, "{call}");
    }
}

#[test]
fn the_calls_of_a_message_see_each_others_changes() {
    let place = Place::new();
    let call = |content: &str, offset: u32, del_bytes: u32| json!({"path": "f", "content": content, "offset": offset, "del_bytes": del_bytes});
    let calls = [call("one two", 0, 0), call("2", 4, 3), call("0 ", 0, 0), call("!", 7, 0)];
    let results = write_with(&place, &calls, || ());
    assert_eq!(place.read("f"), "0 one 2!");
    assert_eq!(results[3], "wrote 1 bytes to f (8 bytes in all)");
}

#[test]
fn the_result_counts_bytes() {
    let place = Place::new();
    place.write("f", "\u{2713}");
    let call = json!({"path": "f", "content": "\u{e9}\u{1f389}", "offset": 3});
    assert_eq!(write(&place, call), "wrote 6 bytes to f (9 bytes in all)");
    assert_eq!(place.read("f"), "\u{2713}\u{e9}\u{1f389}");
}

#[test]
fn an_empty_content_makes_an_empty_file() {
    let place = Place::new();
    let result = write(&place, json!({"path": "f", "content": ""}));
    assert_eq!(result, "wrote 0 bytes to f (0 bytes in all)");
    assert_eq!(place.read("f"), "");
}

#[test]
fn a_large_file_is_written_whole() {
    let (place, content) = (Place::new(), "0123456789abcdef\n".repeat(20_000));
    let result = write(&place, json!({"path": "f", "content": content}));
    assert_eq!(result, "wrote 340000 bytes to f (340000 bytes in all)");
    assert_eq!(place.read("f"), content);
}

#[test]
fn the_description_tells_of_the_default_and_how_to_replace_a_file() {
    let server = Server::start([Reply::text("done")]);
    Place::new().run(&server, &["-"], "hello");
    let tools = server.requests()[0].body["tools"].to_string().to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| tools.contains(word));
    assert!(has(&["in front", "prepend", "before", "at the beginning", "at the start"]), "{tools}");
    assert!(has(&["replace"]), "{tools}");
    assert!(has(&["whole", "entire", "replaces all", "replace all"]), "{tools}");
}

// ---- What is refused

#[test]
fn an_offset_past_the_end_is_an_error() {
    let place = Place::new();
    place.write("f", "0123456789");
    for offset in [11, 1_000_000, u64::MAX / 2] {
        refused(&place, json!({"path": "f", "content": "x", "offset": offset}));
        refused(&place, json!({"path": "f", "content": "x", "offset": offset, "del_bytes": 5}));
    }
    refused(&place, json!({"path": "new", "content": "x", "offset": 1}));
    refused(&place, json!({"path": "new/folder/f", "content": "x", "offset": 1}));
}

#[test]
fn a_path_that_is_no_regular_file_is_an_error() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    symlink("folder", place.path("link")).unwrap();
    place.write("file", "old");
    let fifo = std::ffi::CString::new(place.path("fifo").to_str().unwrap()).unwrap();
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    symlink("fifo", place.path("to-fifo")).unwrap();
    let _socket = place.socket("socket");
    for path in ["folder", "folder/", ".", "/", "link", "file/x", "fifo", "to-fifo"] {
        refused(&place, json!({"path": path, "content": "x"}));
    }
    for path in ["socket", "", "/dev/null", "/dev/full", "/dev/stdout", "/proc/self/fd/1"] {
        refused(&place, json!({"path": path, "content": "x"}));
    }
    for path in ["/dev/null", "/dev/full"] {
        assert!(fs::metadata(path).unwrap().file_type().is_char_device(), "{path}");
    }
    assert!(fs::symlink_metadata(place.path("to-fifo")).unwrap().is_symlink());
}

#[test]
fn a_link_that_points_to_itself_is_an_error() {
    let place = Place::new();
    symlink("loop", place.path("loop")).unwrap();
    refused(&place, json!({"path": "loop", "content": "x"}));
    assert!(fs::symlink_metadata(place.path("loop")).unwrap().is_symlink());
}

#[test]
fn a_cut_through_a_character_of_a_text_file_is_an_error() {
    let place = Place::new();
    place.write("f", "a\u{e9}\u{2713}\u{1f389}z"); // at 1, 3, 6, 10; 11 bytes
    let call = |offset: u64, del_bytes: u64| json!({"path": "f", "content": "-", "offset": offset, "del_bytes": del_bytes});
    for (offset, del_bytes) in
        [(2, 0), (2, 1), (2, 99), (4, 0), (5, 1), (7, 3), (9, 2), (0, 2), (1, 1), (3, 2), (6, 1)]
    {
        refused(&place, call(offset, del_bytes));
    }
    assert_eq!(write(&place, call(1, 2)), "wrote 1 bytes to f (10 bytes in all)");
    assert_eq!(place.read("f"), "a-\u{2713}\u{1f389}z");
}

#[test]
fn a_binary_file_may_be_cut_anywhere() {
    for (bytes, offset, del_bytes, after) in [
        (&b"\xff\xc3\xa9"[..], 2, 0, &b"\xff\xc3-\xa9"[..]),
        (b"\xc3\xa9\xfe", 1, 1, b"\xc3-\xfe"),
        (b"\xff\xd8\xff\xe0", 1, 2, b"\xff-\xe0"),
    ] {
        let place = Place::new();
        place.write("f", bytes);
        let call = json!({"path": "f", "content": "-", "offset": offset, "del_bytes": del_bytes});
        let told = format!("wrote 1 bytes to f ({} bytes in all)", after.len());
        assert_eq!(write(&place, call), told);
        assert_eq!(fs::read(place.path("f")).unwrap(), after);
    }
}

/// Takes from mb what root may do to files whose mode forbids it.
fn without_override() {
    for capability in [1, 2] {
        // CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, in vain for any other user
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

#[test]
fn without_permission_nothing_is_written() {
    let place = Place::new();
    place.write("read-only", "old");
    place.write("write-only", "old");
    fs::create_dir(place.path("folder")).unwrap();
    for (name, mode) in [("read-only", 0o444), ("write-only", 0o222), ("folder", 0o555)] {
        set_mode(&place, name, mode);
    }
    let before = listing_as_root(&place);
    let paths = ["read-only", "write-only", "folder/new", "folder/new/new"];
    let calls = paths.map(|path| json!({"path": path, "content": "x", "del_bytes": 99}));
    for (result, path) in write_with(&place, &calls, without_override).iter().zip(paths) {
        assert!(result.starts_with("error: "), "{path}: {result}");
        assert!(result.to_lowercase().contains("permission denied"), "{path}: {result}");
    }
    assert_eq!(listing_as_root(&place), before);
}

/// The listing, once the test may read everything.
fn listing_as_root(place: &Place) -> Vec<String> {
    set_mode(place, "write-only", 0o622);
    let all = listing(&place.work());
    set_mode(place, "write-only", 0o222);
    all
}

// ---- In one step

#[test]
fn the_new_file_takes_the_olds_place_in_one_step() {
    let place = Place::new();
    place.write("f", "old text");
    let mut old = fs::File::open(place.path("f")).unwrap();
    write(&place, json!({"path": "f", "content": "new text, longer", "del_bytes": 99}));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut old, &mut text).unwrap();
    assert_eq!(text, "old text"); // whoever reads it meanwhile has it whole
    assert_eq!(place.read("f"), "new text, longer");
}

/// Lets mb write no file beyond 4 KB, as on a disk that is full then.
fn full_disk() {
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN); // so that it is an error
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
    }
}

#[test]
fn a_full_disk_leaves_the_old_file_whole_and_no_other_behind() {
    let (place, long) = (Place::new(), "0123456789".repeat(1000));
    place.write("f", "old");
    fs::create_dir(place.path("folder")).unwrap();
    let before = listing(&place.work());
    let paths = ["f", "new", "folder/new"];
    let calls = paths.map(|path| json!({"path": path, "content": long, "del_bytes": 3}));
    for result in write_with(&place, &calls, full_disk) {
        assert!(result.starts_with("error: "), "{result}");
    }
    assert_eq!(listing(&place.work()), before);
}

#[test]
fn no_temporary_file_is_left() {
    let place = Place::new();
    place.write("f", "old");
    let calls = [
        json!({"path": "f", "content": "new"}),
        json!({"path": "f", "content": "new", "offset": 99}),
        json!({"path": "g", "content": "new"}),
        json!({"path": ".", "content": "new"}),
    ];
    write_with(&place, &calls, || ());
    let mut names: Vec<_> = fs::read_dir(place.work()).unwrap().flatten().collect();
    names.retain(|entry| !entry.file_name().to_str().unwrap().ends_with(".cfg"));
    assert_eq!(names.len(), 2, "{names:?}");
}

// ---- The temporary file

/// Makes mb process 1, as it is in a container of its own.
const CONTAINER: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];
/// The same for who is not root.
const USERS_CONTAINER: [&str; 5] = ["unshare", "-Ur", "--pid", "--fork", "--kill-child"];

/// The one of them that works here, if one does.
fn container() -> Option<&'static [&'static str]> {
    let works = |program: &[&str]| {
        let status =
            std::process::Command::new(program[0]).args(&program[1..]).arg("true").output();
        status.is_ok_and(|output| output.status.success())
    };
    [&CONTAINER[..], &USERS_CONTAINER].into_iter().find(|program| works(program))
}

#[test]
fn a_link_under_a_temporary_files_name_is_not_written_through() {
    // As far as a name can be guessed: by number of process, by the file's own.
    let plant = r#"for n in $$ 1 2 3; do
        for name in .mb-$n .mb$n mb-$n .mb.$n tmp$n .tmp$n .tmp-$n .f.$n f.$n .f-$n .f.mb-$n; do
            ln -s "$0" $name; ln -s "$0" $name.tmp; ln -s "$0" $name~
        done
        done; for name in f.tmp .f.tmp f~ .f.swp .mb.tmp mb.tmp .tmp tmp f.new f.mb; do
            ln -s "$0" $name
        done; exec "$@""#;
    for target in ["../home/victim", "victim", "absent", "../home/absent"] {
        let place = Place::new();
        place.write("victim", "untouched");
        fs::write(place.home().join("victim"), "untouched").unwrap();
        place.write("f", "old");
        let call = json!({"path": "f", "content": "new", "del_bytes": 3});
        let results = write_through(&place, &["sh", "-c", plant, target], &[call], || ());
        assert_eq!(results, ["wrote 3 bytes to f (3 bytes in all)"]);
        assert_eq!(place.read("f"), "new");
        assert!(fs::symlink_metadata(place.path("f")).unwrap().is_file());
        assert_eq!(place.read("victim"), "untouched", "{target}");
        assert_eq!(fs::read_to_string(place.home().join("victim")).unwrap(), "untouched");
        assert!(!place.path("absent").exists() && !place.home().join("absent").exists());
    }
}

#[test]
fn many_that_write_in_one_folder_never_mix_though_each_is_process_1() {
    let Some(container) = container() else { return skip("unshare") };
    let place = Place::new();
    place.write("model.cfg", ""); // before they all begin
    let name = |mb: usize, file: usize| format!("f-{mb}-{file}");
    let text = |mb: usize, file: usize| format!("{mb} wrote {file}\n").repeat(300);
    std::thread::scope(|scope| {
        for mb in 0..6 {
            let place = &place;
            scope.spawn(move || {
                let call = |n| json!({"path": name(mb, n), "content": text(mb, n)});
                let calls: Vec<_> = (0..20).map(call).collect();
                for result in write_through(place, container, &calls, || ()) {
                    assert!(result.starts_with("wrote "), "{result}");
                }
            });
        }
    });
    for (mb, file) in (0..6).flat_map(|mb| (0..20).map(move |file| (mb, file))) {
        assert_eq!(place.read(&name(mb, file)), text(mb, file), "{}", name(mb, file));
    }
    assert_eq!(fs::read_dir(place.work()).unwrap().count(), 6 * 20 + 1); // and the configuration
}

/// What strace tells of one system call.
#[derive(Debug)]
struct Step {
    call: String,
    path: PathBuf, // the first one, whole
    line: String,
    flags: String, // the line without texts and paths
}

impl Step {
    fn is(&self, calls: &[&str]) -> bool {
        calls.iter().any(|call| self.call.starts_with(call))
    }

    /// The mode of a file that it creates.
    fn created_with(&self) -> Option<u32> {
        let rest = self.flags.split_once("O_CREAT")?.1.split_once(", ")?.1;
        let digits = rest.split(|c: char| !c.is_digit(8)).next()?;
        Some(u32::from_str_radix(digits, 8).unwrap() & 0o7777)
    }
}

fn cannot_trace() -> bool {
    cannot(&["strace", "-f", "-o", "/dev/null", "true"])
}

/// Where a place's `steps` come from: the options of strace that trace what is done with files.
fn tracing(place: &Place) -> [String; 10] {
    let log = place.home().join("trace").to_str().unwrap().to_string();
    let calls = "trace=%file,fchmod,?fchmodat2,fchown,fsync,fdatasync,write";
    let options = ["strace", "-f", "-y", "-qq", "-e", "signal=none", "-e", calls, "-o", &log];
    options.map(String::from)
}

/// What was done with files below the place, its commands' and dead calls aside.
fn steps(place: &Place) -> Vec<Step> {
    let log = fs::read_to_string(place.home().join("trace")).unwrap();
    let step = |line: &str| {
        let (call, rest) = line.split_once(' ')?.1.trim_start().split_once('(')?;
        let given = rest.split('"').nth(1).unwrap_or_default();
        // `openat(3</folder>, "name"`, `write(3</folder/name>, "`: what a descriptor stands for.
        let number = |text: &&str| *text == "AT_FDCWD" || text.parse::<u32>().is_ok();
        let known = rest.split_once('<').filter(|(before, _)| number(before));
        let known = known.map(|(_, path)| path.split('>').next().unwrap_or_default());
        let plain = |path: &str| PathBuf::from(path.replace("\\74", "<").replace("\\76", ">"));
        let base = known.map_or(place.work(), plain);
        let with_name = !["fchmod", "fchown", "fsync", "fdatasync", "write"].contains(&call);
        let path = if with_name { base.join(given) } else { base };
        let even = |text: &str, ends: &[char]| -> String { text.split(ends).step_by(2).collect() };
        let flags = even(&even(rest, &['"']), &['<', '>']);
        Some(Step { call: call.into(), path, line: line.into(), flags })
    };
    let mut steps: Vec<Step> = log.lines().filter_map(step).collect();
    let root = place.work().parent().unwrap().to_path_buf();
    let failed = |line: &str| line.contains(" = -1 E") && line.ends_with(')');
    steps.retain(|step| step.path.starts_with(&root) && !failed(&step.line));
    assert!(!steps.is_empty(), "strace has seen nothing:\n{log}");
    steps
}

/// Runs mb with these calls under strace; returns what it did with files.
fn traced(place: &Place, program: &[&str], call: impl ToString, setup: fn()) -> Vec<Step> {
    let options = tracing(place);
    let program = [&options.each_ref().map(String::as_str), program].concat();
    let result = write_through(place, &program, &[call], setup).remove(0);
    assert!(result.starts_with("wrote "), "{result}");
    steps(place)
}

#[test]
fn a_temporary_file_is_created_anew_under_a_name_that_nobody_can_foresee() {
    if cannot_trace() {
        return;
    }
    let Some(container) = container() else { return skip("unshare") };
    let mut names = Vec::new();
    for _ in 0..3 {
        let place = Place::new();
        place.write("f", "old");
        let steps = traced(&place, container, json!({"path": "f", "content": "new"}), || ());
        let created: Vec<_> = steps.iter().filter(|step| step.created_with().is_some()).collect();
        assert!(created.iter().all(|step| step.flags.contains("O_EXCL")), "{created:#?}");
        names.extend(created.iter().map(|step| step.path.file_name().unwrap().to_owned()));
    }
    assert!(names.len() >= 3, "no temporary file: {names:?}");
    let different: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "{names:?}"); // though each time it was process 1
}

#[test]
fn a_file_has_its_final_mode_from_the_start() {
    if cannot_trace() {
        return;
    }
    // The old file's mode, whether the umask forbids some, and the mode that the file is to have.
    for (old, masked, wanted) in [
        (Some(0o600), false, 0o600),
        (Some(0o640), false, 0o640),
        (Some(0o755), true, 0o755),
        (None, false, 0o666),
        (None, true, 0o640),
    ] {
        let place = Place::new();
        if let Some(bits) = old {
            place.write("f", "old");
            set_mode(&place, "f", bits);
        }
        let setup = if masked { || drop_mask(0o027) } else { || drop_mask(0) };
        let steps = traced(&place, &[], json!({"path": "f", "content": "new"}), setup);
        assert_eq!(mode(&place, "f"), wanted);
        assert_never_open(&steps, &place.work(), if masked { 0o027 } else { 0 }, wanted);
    }
}

/// Fails if a file of this folder was ever open to more people than it is now.
fn assert_never_open(steps: &[Step], folder: &Path, mask: u32, wanted: u32) {
    let mut created = 0;
    for step in steps.iter().filter(|step| step.path.parent() == Some(folder)) {
        if let Some(bits) = step.created_with() {
            created += 1;
            let more = bits & !mask & !wanted;
            assert!(more == 0, "wanted {wanted:o}, created open to more: {}", step.line);
        }
    }
    assert!(created > 0, "nothing was created: {steps:#?}");
    let renamed = steps.iter().rposition(|step| step.is(&["rename"])).expect("a rename");
    let late = steps[renamed..].iter().find(|step| step.is(&["chmod", "fchmod"]));
    assert!(late.is_none(), "a mode that came late: {late:?}");
}

#[test]
fn the_content_is_on_the_disk_before_the_file_takes_its_place() {
    if cannot_trace() {
        return;
    }
    let place = Place::new();
    place.write("f", "old");
    let steps = traced(&place, &[], json!({"path": "f", "content": "new"}), || ());
    let renamed = steps.iter().rposition(|step| step.is(&["rename"])).expect("a rename");
    let temporary = &steps[renamed].path;
    let mut before = steps[..renamed].iter().filter(|step| step.path == *temporary);
    assert!(before.any(|step| step.is(&["write"])), "not written: {steps:#?}");
    assert!(before.any(|step| step.is(&["fsync", "fdatasync"])), "not synced: {steps:#?}");
}

/// Lets strace answer these system calls with an error, as file systems do that lack them.
fn refusing(calls: &str, error: &str) -> [String; 6] {
    let inject = format!("inject={calls}:error={error}");
    ["strace", "-f", "-o", "/dev/null", "-e", &inject].map(String::from)
}

const MODES: &str = "?chmod,fchmod,fchmodat,?fchmodat2";
const OWNERS: &str = "?chown,?lchown,fchown,fchownat";
const SYNCS: &str = "fsync,fdatasync";

#[test]
fn a_file_system_without_modes_owners_or_fsync_is_written_all_the_same() {
    if cannot_trace() {
        return;
    }
    for (calls, error) in [
        (MODES, "EPERM"),
        (MODES, "ENOSYS"),
        (MODES, "EOPNOTSUPP"),
        (SYNCS, "EINVAL"),
        (SYNCS, "EOPNOTSUPP"),
        (&format!("{MODES},{OWNERS},{SYNCS}"), "EPERM"),
    ] {
        let place = Place::new();
        place.write("f", "old");
        let program = refusing(calls, error);
        let program = program.each_ref().map(String::as_str);
        let calls = ["f", "g"].map(|path| json!({"path": path, "content": "new "}));
        let results = write_through(&place, &program, &calls, || ());
        let told = ["wrote 4 bytes to f (7 bytes in all)", "wrote 4 bytes to g (4 bytes in all)"];
        assert_eq!(results, told, "{program:?}");
        assert_eq!((place.read("f"), place.read("g")), ("new old".into(), "new ".into()));
    }
}

// ---- Modes

#[test]
fn the_mode_bits_are_kept() {
    for bits in [0o755, 0o600, 0o644, 0o777, 0o640, 0o700] {
        let place = Place::new();
        place.write("f", "old");
        set_mode(&place, "f", bits);
        write(&place, json!({"path": "f", "content": "new", "del_bytes": 99}));
        assert_eq!(place.read("f"), "new");
        assert_eq!(mode(&place, "f"), bits, "{bits:o}");
    }
}

#[test]
fn new_files_and_folders_follow_the_umask() {
    let call = || [json!({"path": "folder/f", "content": "new"})];
    let cases: [(fn(), u32, u32); 3] = [
        (|| drop_mask(0o022), 0o644, 0o755),
        (|| drop_mask(0o027), 0o640, 0o750),
        (|| drop_mask(0o002), 0o664, 0o775),
    ];
    for (setup, file, folder) in cases {
        let place = Place::new();
        write_with(&place, &call(), setup);
        assert_eq!((mode(&place, "folder/f"), mode(&place, "folder")), (file, folder));
    }
}

fn drop_mask(mask: libc::mode_t) {
    unsafe { libc::umask(mask) };
}

#[test]
fn a_mode_is_kept_whatever_the_umask_forbids() {
    let place = Place::new();
    place.write("f", "old");
    set_mode(&place, "f", 0o775);
    write_with(&place, &[json!({"path": "f", "content": "new"})], || drop_mask(0o077));
    assert_eq!(mode(&place, "f"), 0o775);
}

#[test]
fn the_owner_is_kept() {
    if unsafe { libc::geteuid() } != 0 {
        return skip("root");
    }
    for bits in [0o644, 0o600, 0o755, 0o4755, 0o2710] {
        let place = Place::new();
        place.write("f", "old");
        std::os::unix::fs::chown(place.path("f"), Some(1234), Some(2345)).unwrap();
        set_mode(&place, "f", bits);
        symlink("f", place.path("link")).unwrap();
        write(&place, json!({"path": "link", "content": "new "}));
        let data = fs::metadata(place.path("f")).unwrap();
        assert_eq!((data.uid(), data.gid(), data.mode() & 0o7777), (1234, 2345, bits));
        assert_eq!(place.read("f"), "new old");
    }
}

#[test]
fn who_may_not_give_a_file_away_writes_it_all_the_same() {
    if unsafe { libc::geteuid() } != 0 {
        return skip("root");
    }
    let place = Place::new();
    place.write("f", "old");
    std::os::unix::fs::chown(place.path("f"), Some(1234), Some(2345)).unwrap();
    set_mode(&place, "f", 0o664);
    let without_chown = || {
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, 0, 0, 0, 0) }; // CAP_CHOWN
    };
    let results = write_with(&place, &[json!({"path": "f", "content": "new "})], without_chown);
    assert_eq!(results, ["wrote 4 bytes to f (7 bytes in all)"]);
    assert_eq!((place.read("f"), mode(&place, "f")), ("new old".into(), 0o664));
}

// ---- Links

#[test]
fn a_symbolic_link_stays_one_and_its_target_changes() {
    let place = Place::new();
    fs::create_dir_all(place.path("a/b")).unwrap();
    let cases = [
        ("plain", "target"),
        ("a/up", "../target"), // relative to the link's folder, not to mb's
        ("a/b/over", "../up"), // a link to a link
        ("a/b/twice", "../b/../up"), // likewise
        ("absolute", "ABSOLUTE"), // in place of it, the target's full path
        ("through", "a/b/../../target"),
    ];
    for (link, to) in cases {
        let absolute = place.path("target");
        let to = if to == "ABSOLUTE" { absolute.to_str().unwrap() } else { to };
        symlink(to, place.path(link)).unwrap();
    }
    for (link, _) in cases {
        place.write("target", "old");
        set_mode(&place, "target", 0o750);
        let before = fs::read_link(place.path(link)).unwrap();
        let result = write(&place, json!({"path": link, "content": "new", "del_bytes": 3}));
        assert_eq!(result, format!("wrote 3 bytes to {link} (3 bytes in all)"));
        assert_eq!(fs::read_link(place.path(link)).unwrap(), before, "{link}");
        assert_eq!((place.read("target").as_str(), mode(&place, "target")), ("new", 0o750));
    }
}

#[test]
fn a_file_in_a_linked_folder_is_written_there() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    symlink("folder", place.path("link")).unwrap();
    write(&place, json!({"path": "link/sub/f", "content": "new"}));
    assert_eq!(place.read("folder/sub/f"), "new");
    assert!(fs::symlink_metadata(place.path("link")).unwrap().is_symlink());
}

#[test]
fn a_dangling_link_is_an_error_and_stays() {
    let place = Place::new();
    symlink("target", place.path("link")).unwrap();
    let result = write(&place, json!({"path": "link", "content": "new"}));
    assert!(result.starts_with("error: "), "{result}");
    assert_eq!(fs::read_link(place.path("link")).unwrap(), Path::new("target"));
    assert!(!place.path("target").exists(), "the target was made");
}

// ---- Sessions and settings, which are files of mb's own

mod needs_sessions {
    use super::*;

    #[test]
    fn a_full_disk_leaves_the_saved_session_whole() {
        let server = Server::start([Reply::text("one"), Reply::text("two")]);
        let place = Place::new();
        place.run(&server, &[], "first\n");
        let (before, files) = (place.session(), listing(&place.sessions()));
        let long = "0123456789".repeat(1000);
        let mb = place.mb(&server, &[]).stdin(format!("/continue\n{long}\n")).setup(full_disk);
        let run = mb.run();
        assert!(!run.stderr.is_empty(), "{run}");
        assert_eq!(place.session(), before, "{run}");
        assert_eq!(listing(&place.sessions()), files, "{run}");
    }

    /// Says something, saves it by name, and where asked sets something.
    fn saved(place: &Place, program: &[&str], setting: &str) -> Run {
        let server = Server::start([Reply::text("one"), Reply::text("sum")]);
        let mb = place.through(program, &server, &[&format!("endpoint={}", server.url())]);
        mb.stdin(format!("first\n/save named\n{setting}\n")).setup(|| drop_mask(0)).run()
    }

    fn files(place: &Place) -> [PathBuf; 2] {
        let file = |id: &str| place.sessions().join(format!("{id}.json"));
        [file(&place.project_id()), file("named")]
    }

    fn bits(path: &Path) -> u32 {
        fs::metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}")).mode() & 0o7777
    }

    #[test]
    fn sessions_are_for_their_owner_alone() {
        let place = Place::new();
        let run = saved(&place, &[], "");
        assert_eq!(bits(&place.sessions()), 0o700, "{run}");
        for file in files(&place) {
            assert_eq!(bits(&file), 0o600, "{file:?}{run}");
        }
    }

    #[test]
    fn a_session_was_never_open_to_others() {
        if cannot_trace() {
            return;
        }
        let place = Place::new();
        let options = tracing(&place);
        saved(&place, &options.each_ref().map(String::as_str), "");
        assert_never_open(&steps(&place), &place.sessions(), 0, 0o600);
    }

    #[test]
    fn a_file_system_without_modes_or_fsync_takes_sessions() {
        if cannot_trace() {
            return;
        }
        for (calls, error) in [(MODES, "EPERM"), (SYNCS, "EINVAL")] {
            let place = Place::new();
            let program = refusing(calls, error);
            let run = saved(&place, &program.each_ref().map(String::as_str), "");
            assert_eq!(run.stderr, "", "{run}");
            assert!(files(&place).iter().all(|file| file.exists()), "{run}");
        }
    }

    mod needs_cfg {
        use super::*;

        #[test]
        fn the_configuration_is_for_its_owner_alone_and_was_never_open_to_others() {
            let place = Place::new();
            let run = saved(&place, &[], "/cfg model x");
            assert_eq!(bits(&place.path(".bantam.cfg")), 0o600, "{run}");
            if cannot_trace() {
                return;
            }
            let options = tracing(&place);
            saved(&place, &options.each_ref().map(String::as_str), "/cfg model y");
            assert_never_open(&steps(&place), &place.work(), 0, 0o600);
        }

        #[test]
        fn a_file_system_without_modes_or_fsync_takes_the_configuration() {
            if cannot_trace() {
                return;
            }
            for (calls, error) in [(MODES, "EPERM"), (SYNCS, "EINVAL")] {
                let place = Place::new();
                let program = refusing(calls, error);
                let run = saved(&place, &program.each_ref().map(String::as_str), "/cfg model x");
                assert_eq!(run.stderr, "", "{run}");
                assert!(place.read(".bantam.cfg").contains("model=x\n"), "{run}");
            }
        }
    }
}

// ---- The home folder

#[test]
fn a_tilde_is_a_name() {
    let place = Place::new();
    for path in ["~", "~x/f", "a/~/f", "./~/f", "f~"] {
        let result = write(&place, json!({"path": path, "content": "new"}));
        assert!(result.starts_with("wrote 3 bytes to "), "{path}: {result}");
        assert_eq!(place.read(path), "new");
        let _ = fs::remove_file(place.path("~")); // "./~/f" is below it
    }
    assert_eq!(fs::read_dir(place.home()).unwrap().count(), 0);
}
