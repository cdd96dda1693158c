//! Properties of all texts and values.
use batzen_config::{Config, parse_duration};
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z][a-zA-Z0-9_-]{0,12}( [a-z0-9]{1,4})?"
}

proptest! {
    #[test]
    fn parser_never_panics(text in "(?s).{0,400}") {
        if let Ok(config) = Config::parse(&text) {
            let _ = config.dump();
        }
    }

    #[test]
    fn parser_never_panics_on_syntax_characters(text in r#"([\[\]="@%#$\{\}:\-a-c \n]|@inline@|@inline-secret@|\[a\]\n|b = ){0,60}"#) {
        if let Ok(config) = Config::parse(&text) {
            let again = Config::parse(&config.to_text()).unwrap();
            prop_assert_eq!(again.to_text(), config.to_text());
            for section in config.sections() {
                for (option, value) in config.options(section) {
                    prop_assert_eq!(again.text(section, option), Some(value.text.as_str()));
                    let _ = config.get::<std::path::PathBuf>(section, option);
                }
            }
        }
    }

    #[test]
    fn written_options_are_read_back(entries in prop::collection::vec((name(), name(), "[^\n\0]{0,40}"), 0..12)) {
        let mut config = Config::default();
        for (section, option, value) in &entries {
            config.set(section, option, value).unwrap();
        }
        let again = Config::parse(&config.to_text()).unwrap();
        for (section, option, _) in &entries {
            prop_assert_eq!(again.text(section, option), config.text(section, option));
        }
    }

    #[test]
    fn durations_add_up(days in 0_u64..100_000, hours in 0_u64..1000, seconds in 0_u64..1_000_000, micros in 0_u64..1_000_000) {
        let text = format!("{days} days {hours} h {seconds}s {micros} us");
        let want = ((days * 24 + hours) * 3600 + seconds) * 1_000_000 + micros;
        prop_assert_eq!(parse_duration(&text).map(batzen_protocol::Duration::as_micros), Some(want));
    }

    #[test]
    fn no_duration_text_panics(text in "[0-9a-z ]{0,40}") {
        let _ = parse_duration(&text);
    }

    #[test]
    fn expansion_terminates(text in r"([$\{\}:\-AB/]|\$\{A:-|\$A|\$B){0,40}", a in r"(\$B|\$A|x|\$\{B:-\$A\}){0,4}", b in r"(\$A|\$B|y){0,4}") {
        let mut config = Config::default();
        config.set("PATHS", "A", &a).unwrap();
        config.set("PATHS", "B", &b).unwrap();
        let _ = config.expand(&text);
    }
}
