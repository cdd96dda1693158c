//! Files: defaults, includes, secrets, and writing back.
use batzen_config::{Config, ConfigError, Loader, Origin};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

fn no_env(_: &str) -> Option<String> {
    None
}

fn write(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn defaults_come_first_then_includes_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    write(&base, "b.conf", "[s]\nfrom_b = b\nboth = b\nover = b\n");
    write(&base, "a.conf", "[s]\nboth = a\n");
    write(&base, "ignored.txt", "nonsense");
    write(&base, ".hidden.conf", "nonsense");
    write(dir.path(), "conf.d/2.conf", "[s]\nx = 2\n");
    write(dir.path(), "conf.d/1.conf", "[s]\nx = 1\n@inline@ ../deeper.conf\n");
    write(dir.path(), "deeper.conf", "[deep]\ny = 3\n");
    let main = write(
        dir.path(),
        "main.conf",
        "[s]\nover = main\n@INLINE-matching@ conf.d/*.conf\nafter = still in s\n@inline-matching@ nothing/*.conf\n",
    );
    let config = Loader::new(no_env)
        .base_dir(Some(&base))
        .builtin("[s]\nbuilt = in\nover = builtin")
        .load(Some(&main))
        .unwrap();
    for (section, option, want, origin) in [
        ("s", "both", "b", Origin::Default),
        ("s", "from_b", "b", Origin::Default),
        ("s", "over", "main", Origin::File),
        ("s", "x", "2", Origin::File),
        ("s", "after", "still in s", Origin::File),
        ("deep", "y", "3", Origin::File),
        ("s", "built", "in", Origin::Builtin),
    ] {
        let value = config.raw(section, option).unwrap();
        assert_eq!((value.text.as_str(), value.source.origin), (want, origin), "[{section}] {option}");
    }
    assert!(config.raw("s", "x").unwrap().source.to_string().ends_with("conf.d/2.conf:2"));
    assert!(config.dump().contains("BUILT = in   # built-in default"));
    // Without any file the default paths remain.
    let bare = Config::load(None, Some(Path::new("/nowhere")), no_env).unwrap();
    assert!(bare.text("paths", "taler_runtime_dir").is_some());
}

#[test]
fn secrets_are_read_if_they_can_be() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "secret.conf", "[cred]\npassword = marked-secret\nusername = u\n[other]\nx = 1\n");
    let main = write(
        dir.path(),
        "main.conf",
        "[a]\nx = 1\n@inline-secret@ cred secret.conf\n@inline-secret@ cred missing.conf\n@inline-secret@ dir .\n",
    );
    let config = Config::load(Some(&main), None, no_env).unwrap();
    assert_eq!(config.text("cred", "password"), Some("marked-secret"));
    assert_eq!(config.text("other", "x"), None);
    assert_eq!(config.warnings().len(), 3, "{:?}", config.warnings());
    assert!(config.warnings()[1].contains("main.conf:4: section [cred] is not read from"));
    assert!(!format!("{config:?}").contains("marked-secret"));
    assert!(!config.dump().contains("marked-secret"));
}

#[test]
fn setting_an_option_changes_one_line_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "secret.conf", "[cred]\npassword = marked-secret\n");
    write(dir.path(), "late.conf", "[a]\nz = included\n");
    let main_text = "# Kept.\n[a]\nx = 1\nz = 1 \n@inline-secret@ cred secret.conf\n@inline@ late.conf\n";
    let main = write(dir.path(), "main.conf", main_text);
    fs::set_permissions(&main, fs::Permissions::from_mode(0o640)).unwrap();
    let link = dir.path().join("link.conf");
    symlink(&main, &link).unwrap();
    let loader = || Loader::new(no_env);
    let set = |section: &str, option: &str, value: &str| {
        loader().set_in_file(&link, section, option, value).unwrap();
        fs::read_to_string(&main).unwrap()
    };
    assert_eq!(set("A", "x", "2"), main_text.replace("x = 1", "X = 2"));
    // The file included later would win, so the change goes below it.
    let text = set("a", "z", "mine");
    assert_eq!(text, main_text.replace("x = 1", "X = 2") + "\n[A]\nZ = mine\n");
    let text = set("new", "long name", "a = \"b\"");
    assert!(text.ends_with("\n[NEW]\nLONG NAME = a = \"b\"\n"), "{text}");
    let again = Config::load(Some(&main), None, no_env).unwrap();
    assert_eq!(again.text("cred", "password"), Some("marked-secret"));
    for (section, option, value) in [("a", "x", "2"), ("a", "z", "mine"), ("new", "long name", "a = \"b\"")] {
        assert_eq!(again.text(section, option), Some(value));
    }
    // Permissions, link and secrets stay; no temporary file is left.
    assert_eq!(fs::metadata(&main).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(link.symlink_metadata().unwrap().file_type().is_symlink());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    // What cannot be written changes nothing.
    let before = fs::read(&main).unwrap();
    assert!(loader().set_in_file(&main, "a", "x", "two\nlines").is_err());
    let broken = write(dir.path(), "broken.conf", "[a\n");
    let error = loader().set_in_file(&broken, "a", "x", "1").unwrap_err().to_string();
    assert!(error.contains("broken.conf:1"), "{error}");
    assert_eq!(fs::read(&main).unwrap(), before);
}

#[test]
fn writers_at_the_same_time_lose_no_change() {
    let dir = tempfile::tempdir().unwrap();
    let main = write(dir.path(), "main.conf", "[a]\n");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let main = &main;
            scope.spawn(move || {
                for option in 0..5 {
                    let name = format!("o{number}{option}");
                    Loader::new(no_env).set_in_file(main, "a", &name, "1").unwrap();
                }
            });
        }
    });
    assert_eq!(Config::load(Some(&main), None, no_env).unwrap().options("a").count(), 40);
}

#[test]
fn bad_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name: &str, text: &str| {
        let main = write(dir.path(), name, text);
        Config::load(Some(&main), None, no_env).unwrap_err()
    };
    assert!(error("a.conf", "[s]\n@inline@ gone.conf\n").to_string().contains("a.conf:2: cannot include"));
    let text = error("loop.conf", "@inline@ loop.conf\n").to_string();
    assert!(text.contains("loop.conf:1: files include files more than 32 deep"), "{text}");
    let text = error("bomb.conf", "@inline-matching@ bomb.con?\n@inline@ bomb.conf\n").to_string();
    assert!(text.contains("deep"), "{text}");
    for n in 0..12 {
        let next = n + 1;
        write(dir.path(), &format!("wide{n}.conf"), &format!("@inline@ wide{next}.conf\n").repeat(10));
    }
    write(dir.path(), "wide12.conf", "");
    let wide = Config::load(Some(&dir.path().join("wide0.conf")), None, no_env).unwrap_err().to_string();
    assert!(wide.contains("more than 1024 files"), "{wide}");
    write(dir.path(), "secret.conf", "[s]\n@inline@ a.conf\n");
    assert!(error("b.conf", "@inline-secret@ s secret.conf").to_string().contains("cannot include others"));
    fs::write(dir.path().join("latin.conf"), b"[s]\na = \xff\n").unwrap();
    let latin = Config::load(Some(&dir.path().join("latin.conf")), None, no_env).unwrap_err();
    assert!(latin.to_string().ends_with("latin.conf: not UTF-8 text"));
    let gone = Config::load(Some(&dir.path().join("gone")), None, no_env).unwrap_err();
    assert!(matches!(gone, ConfigError::File { .. }), "{gone}");
}
