//! The dialect, case by case: the meaning of texts, and the errors for invalid ones.
use batzen_config::{Config, parse_duration};
use batzen_protocol::{Amount, Duration};
use std::path::PathBuf;

#[test]
fn values_read_as_written() {
    let text = r#"
# a comment
   % another = one
[Exchange]
PORT=8081
 base_url =  http://localhost:8081/?a=b#c
Quoted = "  blanks at both ends  "
inner = say "hi"
empty =
empty_quoted = ""
[PATHS]
x=1
[EXCHANGE]
port = 8082
[a section with blanks]
"#;
    let config = Config::parse(text).unwrap();
    let cases = [
        ("exchange", "port", Some("8082")),
        ("EXCHANGE", "Base_URL", Some("http://localhost:8081/?a=b#c")),
        ("exchange", "quoted", Some("  blanks at both ends  ")),
        ("exchange", "inner", Some("say \"hi\"")),
        ("exchange", "empty", Some("")),
        ("exchange", "empty_quoted", Some("")),
        ("exchange", "nothing", None),
        ("nothing", "port", None),
        ("paths", "X", Some("1")),
    ];
    for (section, option, want) in cases {
        assert_eq!(config.text(section, option), want, "[{section}] {option}");
    }
    assert!(config.has_section("A SECTION with blanks"));
    assert_eq!(config.raw("exchange", "port").unwrap().source.line, 14);
    assert_eq!(config.sections().collect::<Vec<_>>(), ["A SECTION WITH BLANKS", "EXCHANGE", "PATHS"]);
    let crlf = Config::parse("\u{feff}[s]\r\na = b\r\n").unwrap();
    assert_eq!(crlf.text("s", "a"), Some("b"));
}

#[test]
fn wrong_lines_are_named() {
    for (text, want) in [
        ("a = b", "line 1: option before the first [section]"),
        ("[s]\n\nnonsense", "line 3: expected option = value"),
        ("[s]\n= 5", "line 2: expected a name before the ="),
        ("[s\na=b", "line 1: expected [section]"),
        ("[]", "line 1: expected [section]"),
        ("[s] x", "line 1: expected [section]"),
        ("[s]\na = \"b", "line 2: the quotes around the value do not close"),
        ("[s]\na = \"", "line 2: the quotes around the value do not close"),
        ("@inline@ x", "line 1: includes need a file to start from"),
        (
            "@outline@ x",
            "line 1: expected @inline@ FILE, @inline-matching@ GLOB or @inline-secret@ SECTION FILE",
        ),
        (
            "@inline@",
            "line 1: expected @inline@ FILE, @inline-matching@ GLOB or @inline-secret@ SECTION FILE",
        ),
        ("[s]\na = \0", "line 2: the line contains a NUL character"),
    ] {
        assert_eq!(Config::parse(text).unwrap_err().to_string(), want, "{text:?}");
    }
}

#[test]
fn typed_values() {
    let config = Config::parse(
        "[s]\nn = 42\nyes = Yes\nno = NO\nd = 1 h 30 m\nf = forever\na = KUDOS:1.50\nserve = Unix\nbad = x y\nneg = -1\nlong = 123456789012345678901\n",
    )
    .unwrap();
    assert_eq!(config.number("s", "n").unwrap(), 42);
    assert!(config.boolean("s", "yes").unwrap());
    assert!(!config.boolean("s", "no").unwrap());
    assert_eq!(config.duration("s", "d").unwrap(), Duration::from_secs(5400));
    assert!(config.duration("s", "f").unwrap().is_forever());
    assert_eq!(config.amount("s", "a").unwrap(), Amount::parse("KUDOS:1.5").unwrap());
    assert_eq!(config.choice("s", "serve", &[("tcp", 1), ("unix", 2)]).unwrap(), Some(2));
    assert_eq!(config.number_in("s", "n", 1..=65535).unwrap(), Some(42));
    assert_eq!(config.get::<u64>("s", "none").unwrap(), None);
    assert_eq!(config.get_or("s", "none", 7_u32).unwrap(), 7);
    let text = |error: batzen_config::ConfigError| error.to_string();
    let found = |expected: &str, option: &str, line: usize, value: &str| {
        format!("line {line}: [S] {option}: expected {expected}, found {value}")
    };
    assert_eq!(
        text(config.number("s", "neg").unwrap_err()),
        found("a number from 0 to 18446744073709551615", "NEG", 10, "\"-1\"")
    );
    assert_eq!(
        text(config.number_in("s", "n", 50..=60).unwrap_err()),
        found("a number from 50 to 60", "N", 2, "\"42\"")
    );
    assert!(config.number("s", "long").is_err());
    assert_eq!(text(config.boolean("s", "bad").unwrap_err()), found("YES or NO", "BAD", 9, "\"x y\""));
    assert_eq!(
        text(config.choice("s", "bad", &[("tcp", 1), ("unix", 2), ("fd", 3)]).unwrap_err()),
        found("tcp, unix or fd", "BAD", 9, "\"x y\"")
    );
    assert!(
        text(config.amount("s", "n").unwrap_err())
            .contains("expected an amount such as KUDOS:1.50, found \"42\"")
    );
    assert_eq!(
        text(config.duration("S", "nothing").unwrap_err()),
        "[S] NOTHING is missing: expected a duration such as 20 s, 1 h 30 m, 4 weeks, 1 year or forever"
    );
}

#[test]
fn durations() {
    const S: u64 = 1_000_000;
    for (text, want) in [
        ("20 s", Some(20 * S)),
        ("20s", Some(20 * S)),
        ("7 days", Some(7 * 86_400 * S)),
        ("1 h", Some(3600 * S)),
        ("1 year", Some(365 * 86_400 * S)),
        ("2 years", Some(730 * 86_400 * S)),
        ("1 a", Some(365 * 86_400 * S)),
        ("2 weeks 3 d", Some(17 * 86_400 * S)),
        ("1 h 30 m", Some(5400 * S)),
        ("1 min 1 minute 1 minutes 1 second 1 seconds", Some(182 * S)),
        ("5 ms 3 us", Some(5003)),
        ("  4  weeks  ", Some(28 * 86_400 * S)),
        ("0 s", Some(0)),
        ("0", Some(0)),
        ("FOREVER", Some(u64::MAX)),
        ("", None),
        ("5", None),
        ("s", None),
        ("1 month", None),
        ("-1 s", None),
        ("1.5 h", None),
        ("1 h30 m", None),
        ("1 h forever", None),
        ("forever 1 h", None),
        ("18446744073709551615 us", None),
        ("99999999999999999999 s", None),
        ("600000 years", None),
    ] {
        assert_eq!(parse_duration(text).map(Duration::as_micros), want, "{text:?}");
    }
}

#[test]
fn paths_expand_from_section_then_environment() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.conf");
    std::fs::write(
        &file,
        "[paths]\nTALER_HOME = /srv/x\nloop = ${LOOP}\n[s]\nkeys = ${TALER_DATA_HOME}/keys\nrt = $TALER_RUNTIME_DIR/s.sock\n\
         env = $ONLY_ENV/x\nhome = ~/x\nloop = $LOOP/x\nnone = $NONE\nplain = postgres:///$x\n",
    )
    .unwrap();
    let env = |name: &str| match name {
        "ONLY_ENV" => Some("/env".to_owned()),
        "TALER_HOME" => Some("/not/this".to_owned()),
        "HOME" => Some("/home/u".to_owned()),
        "TMPDIR" => Some("/var/tmp".to_owned()),
        _ => None,
    };
    let config = Config::load(Some(&file), None, env).unwrap();
    for (option, want) in [
        ("keys", "/srv/x/.local/share/taler/keys"),
        ("rt", "/var/tmp/taler-system-runtime/s.sock"),
        ("env", "/env/x"),
        ("home", "/home/u/x"),
    ] {
        assert_eq!(config.path("s", option).unwrap(), PathBuf::from(want));
    }
    // Only paths are expanded.
    assert_eq!(config.string("s", "plain").unwrap(), "postgres:///$x");
    let error = config.path("s", "none").unwrap_err().to_string();
    assert!(error.ends_with("a.conf:10: [S] NONE: expected a path, found variable $NONE, which is neither in [PATHS] nor in the environment"), "{error}");
    assert!(config.path("s", "loop").unwrap_err().to_string().contains("nested more than"));
}

#[test]
fn sections_by_prefix() {
    let text = "[coin_kudos_1]\n[COIN-Kudos_2]\n[coin_]\n[coins]\n[exchange-account-Main]\n[ü]\n";
    let config = Config::parse(text).unwrap();
    let coins: Vec<_> = config.sections_with(&["coin_", "coin-"]).collect();
    assert_eq!(coins, [("COIN-KUDOS_2", "Kudos_2"), ("COIN_KUDOS_1", "kudos_1")]);
    assert_eq!(
        config.sections_with(&["exchange-account-"]).collect::<Vec<_>>(),
        [("EXCHANGE-ACCOUNT-MAIN", "Main")]
    );
}

#[test]
fn unknown_options_are_reported_with_the_nearest() {
    let config =
        Config::parse("[exchange]\nport = 1\nbase_ulr = x\nzzz = 1\n[other]\na=b\n[coin_1]\nvlaue = x\n")
            .unwrap();
    let known: &[(&str, &[&str])] = &[("exchange", &["PORT", "BASE_URL"]), ("coin_*", &["value"])];
    let unknown: Vec<String> = config.unknown_options(known).iter().map(ToString::to_string).collect();
    assert_eq!(
        unknown,
        [
            "line 8: [COIN_1] VLAUE is not an option of this section (did you mean VALUE?)",
            "line 3: [EXCHANGE] BASE_ULR is not an option of this section (did you mean BASE_URL?)",
            "line 4: [EXCHANGE] ZZZ is not an option of this section",
        ]
    );
}

#[test]
fn misspelled_sections_are_reported() {
    let text =
        "[exchnage]\na=b\n[coin-eur]\nc=d\n[cion_1]\ne=f\n[merchant]\ng=h\n[exchange]\nport=1\n[exchang]\n";
    let config = Config::parse(text).unwrap();
    let known: &[(&str, &[&str])] = &[("exchange", &["PORT"]), ("coin_*", &["VALUE"])];
    let unknown: Vec<String> = config.unknown_sections(known).iter().map(ToString::to_string).collect();
    assert_eq!(
        unknown,
        [
            "line 6: no program reads section [CION_1] (did you mean [COIN_*]?)",
            "line 4: no program reads section [COIN-EUR] (did you mean [COIN_*]?)",
            "line 2: no program reads section [EXCHNAGE] (did you mean [EXCHANGE]?)",
        ]
    );
}

#[test]
fn set_remove_and_write_back() {
    let mut config = Config::parse("[s]\nb = 2\na = \" x \"\n").unwrap();
    config.set("New", "Key", "\"quoted\"").unwrap();
    config.set("s", "B", "3").unwrap();
    assert!(config.remove("S", "a"));
    assert!(!config.remove("S", "a"));
    assert_eq!(config.to_text(), "[NEW]\nKEY = \"\"quoted\"\"\n\n[S]\nB = 3\n\n");
    assert_eq!(Config::parse(&config.to_text()).unwrap().text("new", "key"), Some("\"quoted\""));
    for (section, option, value) in [
        ("", "a", "b"),
        ("s]", "a", "b"),
        ("s", "", "b"),
        ("s", "a=b", "c"),
        ("s", "#a", "b"),
        ("s", "a", "b\nc"),
    ] {
        assert!(config.set(section, option, value).is_err(), "{section:?} {option:?} {value:?}");
    }
}
