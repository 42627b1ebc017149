//! What `write_file` does to files, and what it tells (§7 of the contract).

mod common;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::*;
use serde_json::{Value, json};

/// Starts mb in this place with these calls of `write_file` as its turn; returns their results.
fn write_with(place: &Place, calls: &[Value], setup: fn()) -> Vec<String> {
    let texts: Vec<String> = calls.iter().map(Value::to_string).collect();
    let ids: Vec<String> = (0..calls.len()).map(|n| format!("c{n}")).collect();
    let calls = ids.iter().zip(&texts).map(|(id, text)| (id.as_str(), "write_file", text.as_str()));
    let calls = Reply::calls(&calls.collect::<Vec<_>>());
    let server = Server::start([calls, Reply::text("done")]);
    let _ = fs::remove_file(place.path("model.cfg")); // of an earlier server
    place.write(".bantam.cfg", format!("endpoint={}\n", server.url()));
    let run = place.mb(&server, &["-"]).stdin("do it").setup(setup).run();
    assert_eq!(run.status, 0, "{run}");
    let tools = server.requests()[1].messages()[3..].to_vec();
    assert_eq!(tools.len(), texts.len(), "{run}");
    tools.iter().map(|tool| tool["content"].as_str().unwrap().into()).collect()
}

/// The result of one call.
fn write(place: &Place, call: Value) -> String {
    write_with(place, &[call], || ()).remove(0)
}

/// Lets a call fail, and looks whether it changed anything.
fn refused(place: &Place, call: Value) -> String {
    let before = listing(&place.work());
    let result = write(place, call.clone());
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
    all.retain(|line| !line.contains(".bantam.cfg"));
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
    let _socket = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
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
fn sessions_and_the_configuration_are_for_their_owner_alone() {
    let server = Server::start([Reply::text("one"), Reply::text("sum")]);
    let place = Place::new();
    let mb = place.mb(&server, &[]).stdin("first\n/save named\n/cfg note hi\n");
    let run = mb.setup(|| drop_mask(0)).run();
    let bits = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(bits(&place.sessions()), 0o700, "{run}");
    for name in [place.project_id(), "named".into()] {
        assert_eq!(bits(&place.sessions().join(name + ".json")), 0o600, "{run}");
    }
    assert_eq!(mode(&place, ".bantam.cfg"), 0o600, "{run}");
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
fn the_target_of_a_dangling_link_is_created() {
    for (link, to, target) in [("link", "target", "target"), ("a/link", "target", "a/target")] {
        let place = Place::new();
        fs::create_dir(place.path("a")).unwrap();
        symlink(to, place.path(link)).unwrap();
        let result = write(&place, json!({"path": link, "content": "new"}));
        assert_eq!(result, format!("wrote 3 bytes to {link} (3 bytes in all)"));
        assert_eq!(place.read(target), "new");
        assert_eq!(fs::read_link(place.path(link)).unwrap(), Path::new(to));
    }
}

#[test]
fn a_dangling_link_to_a_link_stays_one() {
    let place = Place::new();
    symlink("second", place.path("first")).unwrap();
    symlink("target", place.path("second")).unwrap();
    write(&place, json!({"path": "first", "content": "new"}));
    assert_eq!(place.read("target"), "new");
    for (link, to) in [("first", "second"), ("second", "target")] {
        assert_eq!(fs::read_link(place.path(link)).unwrap(), Path::new(to));
    }
}
