//! Checks the groups of the shared test vectors that need neither JSON bodies nor amounts. The protocol crate
//! checks those, and all the others. The values were computed by independent implementations of the protocol.
//!
//! The environment variable `BATZEN_VECTORS` names a further file of the same format to be checked as well.
mod curve;
mod rsa;
mod wallet;

use serde_json::Value;

/// One case of a group.
#[derive(Clone, Copy)]
struct Case<'a>(&'a Value);

impl<'a> Case<'a> {
    fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    fn value(&self, name: &str) -> &'a Value {
        self.0.get(name).unwrap_or_else(|| panic!("member {name} is missing"))
    }

    fn text(&self, name: &str) -> &'a str {
        self.value(name).as_str().unwrap_or_else(|| panic!("member {name} is no text"))
    }

    fn bool(&self, name: &str) -> bool {
        self.value(name).as_bool().unwrap_or_else(|| panic!("member {name} is no truth value"))
    }

    fn u32(&self, name: &str) -> u32 {
        let number = self.value(name).as_u64().unwrap_or_else(|| panic!("member {name} is no number"));
        number.try_into().unwrap()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        hex(self.text(name))
    }

    fn array<const N: usize>(&self, name: &str) -> [u8; N] {
        let bytes = self.bytes(name);
        bytes.try_into().unwrap_or_else(|bytes: Vec<u8>| panic!("member {name} has {} bytes", bytes.len()))
    }

    fn get<T: for<'b> TryFrom<&'b [u8]>>(&self, name: &str) -> T {
        T::try_from(&self.bytes(name)).unwrap_or_else(|_| panic!("member {name} has the wrong size"))
    }

    fn list(&self, name: &str) -> Vec<Case<'a>> {
        let list = self.value(name).as_array().unwrap_or_else(|| panic!("member {name} is no list"));
        list.iter().map(Case).collect()
    }

    /// A list of values given as hexadecimal texts.
    fn values<T: for<'b> TryFrom<&'b [u8]>>(&self, name: &str) -> Vec<T> {
        let parse = |case: Case<'_>| {
            let bytes = hex(case.0.as_str().expect("a list of texts"));
            T::try_from(&bytes).unwrap_or_else(|_| panic!("an item of {name} has the wrong size"))
        };
        self.list(name).into_iter().map(parse).collect()
    }
}

fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd number of hexadecimal digits");
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Runs `check` on every case of a group, in the project's file and in the further one.
fn for_each(group: &str, check: impl Fn(Case<'_>)) {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/tests/vectors/crypto.json");
    let run = |path: &std::ffi::OsStr| {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let groups: Value = serde_json::from_str(&text).expect("vectors are JSON");
        let cases = groups.get(group).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (number, case) in cases.iter().enumerate() {
            println!("{} {group} {number}", path.display());
            check(Case(case));
        }
        cases.len()
    };
    assert!(run(own.as_ref()) > 0, "group {group} is missing");
    if let Some(path) = std::env::var_os("BATZEN_VECTORS") {
        run(&path);
    }
}
