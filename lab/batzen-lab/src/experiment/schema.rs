//! The JSON schema of topologies, with which editors check and complete them, compared with what the program reads.

use std::collections::BTreeSet;
use std::path::Path;

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde_json::Value;

use super::topology::{Host, HostKind, Link, Role, RoleSpec, Topology, Worker};

const DIRECTIVE: &str = "#:schema ./topology.schema.json";

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies"))
}

fn schema() -> Value {
    let text = std::fs::read_to_string(directory().join("topology.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A deserializer without data, which notes the members or variants that a type asks for.
#[derive(Default)]
struct Names(BTreeSet<&'static str>);

impl<'de> Deserializer<'de> for &mut Names {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no data"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.0.extend(fields);
        Err(Error::custom("no data"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.0.extend(variants);
        Err(Error::custom("no data"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

fn names<'de, T: Deserialize<'de>>() -> BTreeSet<&'static str> {
    let mut names = Names::default();
    assert!(T::deserialize(&mut names).is_err());
    assert!(!names.0.is_empty());
    names.0
}

/// The demands of a schema that a value does not meet. Of JSON Schema it knows what this one uses.
fn problems(root: &Value, schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (keyword, wanted) in schema.as_object().unwrap() {
        let number = || value.as_f64().zip(wanted.as_f64());
        let count = || value.as_array().map(|all| (all.len() as u64, wanted.as_u64().unwrap()));
        let is_right = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "definitions" | "pattern" => true,
            "$ref" => {
                let place = wanted.as_str().unwrap().strip_prefix('#').unwrap();
                found.extend(problems(root, root.pointer(place).unwrap(), value, path));
                true
            }
            "type" => match wanted.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                other => panic!("{other}"),
            },
            "enum" => wanted.as_array().unwrap().contains(value),
            "required" => {
                let members = wanted.as_array().unwrap().iter().map(|member| member.as_str().unwrap());
                members.into_iter().all(|member| value.get(member).is_some())
            }
            "properties" => {
                for (member, schema) in wanted.as_object().unwrap() {
                    if let Some(value) = value.get(member) {
                        found.extend(problems(root, schema, value, &format!("{path}/{member}")));
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = |member: &str| schema["properties"].get(member).is_some();
                let others = value.as_object().into_iter().flatten().filter(|(member, _)| !known(member));
                if wanted == false {
                    others.count() == 0
                } else {
                    for (member, value) in others {
                        found.extend(problems(root, wanted, value, &format!("{path}/{member}")));
                    }
                    true
                }
            }
            "items" => {
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    found.extend(problems(root, wanted, value, &format!("{path}/{index}")));
                }
                true
            }
            "oneOf" => {
                let fits = |schema: &&Value| problems(root, schema, value, path).is_empty();
                wanted.as_array().unwrap().iter().filter(fits).count() == 1
            }
            "minimum" => number().is_none_or(|(value, limit)| value >= limit),
            "maximum" => number().is_none_or(|(value, limit)| value <= limit),
            "exclusiveMinimum" => number().is_none_or(|(value, limit)| value > limit),
            "exclusiveMaximum" => number().is_none_or(|(value, limit)| value < limit),
            "minItems" => count().is_none_or(|(count, limit)| count >= limit),
            "maxItems" => count().is_none_or(|(count, limit)| count <= limit),
            "uniqueItems" => value.as_array().is_none_or(|all| {
                all.iter().map(Value::to_string).collect::<BTreeSet<_>>().len() == all.len()
            }),
            other => panic!("{path}: this test does not know {other}"),
        };
        if !is_right {
            found.push(format!("{path}: {keyword} {wanted}"));
        }
    }
    found
}

fn problems_of(text: &str) -> Vec<String> {
    let schema = schema();
    problems(&schema, &schema, &toml::from_str(text).unwrap(), "")
}

#[test]
fn every_member_that_is_read_is_in_the_schema() {
    let schema = schema();
    for (place, members) in [
        ("", names::<Topology>()),
        ("/definitions/host", names::<Host>()),
        ("/definitions/role", names::<RoleSpec>()),
        ("/definitions/link", names::<Link>()),
    ] {
        let found = schema.pointer(place).unwrap();
        let listed = found["properties"].as_object().unwrap().keys().map(String::as_str);
        assert_eq!(listed.collect::<BTreeSet<_>>(), members, "{place}");
        assert_eq!(found["additionalProperties"], false, "{place}");
    }
    for (place, values) in [
        ("/definitions/host/properties/kind", names::<HostKind>()),
        ("/definitions/role/properties/role", names::<Role>()),
        ("/definitions/role/properties/workers/items", names::<Worker>()),
    ] {
        let listed = schema.pointer(place).unwrap()["enum"].as_array().unwrap().iter();
        assert_eq!(listed.map(|value| value.as_str().unwrap()).collect::<BTreeSet<_>>(), values, "{place}");
    }
}

#[test]
fn the_schema_and_the_program_refuse_the_same() {
    const SMALL: &str = "
        name = 'small'
        [hosts.one]
        [[role]]
        role = 'bank'
        hosts = ['one']
        [[step]]
        wait_s = 1
    ";
    assert_eq!(problems_of(SMALL), Vec::<String>::new());
    Topology::parse(SMALL).unwrap();
    for (old, new) in [
        ("name = 'small'", ""),
        ("name = 'small'", "name = 7"),
        ("name = 'small'", "name = 'small'\ncolour = 'red'"),
        ("name = 'small'", "name = 'small'\nrsa_bits = 512"),
        ("[hosts.one]", "[hosts.one]\nkind = 'balloon'"),
        ("[hosts.one]", "[hosts.one]\ncolour = 'red'"),
        ("role = 'bank'", "role = 'bakery'"),
        ("role = 'bank'", ""),
        ("hosts = ['one']", ""),
        ("hosts = ['one']", "hosts = ['one']\ncount = 0"),
        ("hosts = ['one']", "hosts = ['one']\ncpu_share = 0.0"),
        ("hosts = ['one']", "hosts = ['one']\nsettings = { bank = { PORT = 1 } }"),
        ("hosts = ['one']", "hosts = ['one']\ndisk_delay_ms = -1"),
        ("hosts = ['one']", "hosts = ['one']\nworkers = ['baker']"),
        ("wait_s = 1", "wait_s = -1"),
        ("wait_s = 1", "sleep_s = 1"),
        ("wait_s = 1", "wait_s = 1\n[[link]]\nrtt_ms = 1"),
        ("wait_s = 1", "wait_s = 1\n[[link]]\nbetween = ['main']"),
    ] {
        assert!(SMALL.contains(old), "{old}");
        let text = SMALL.replace(old, new);
        assert!(!problems_of(&text).is_empty(), "the schema permits {new:?}");
        assert!(Topology::parse(&text).is_err(), "the program permits {new:?}");
    }
}

#[test]
fn the_examples_name_the_schema_and_keep_to_it() {
    let files = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let examples: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
    assert!(examples.len() >= 3, "{examples:?}");
    for path in examples {
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().next(), Some(DIRECTIVE), "{}", path.display());
        assert_eq!(problems_of(&text), Vec::<String>::new(), "{}", path.display());
    }
}
