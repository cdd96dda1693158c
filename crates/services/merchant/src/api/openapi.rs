//! The description of the interface: `/openapi.json`.

use std::sync::LazyLock;

use batzen_http::{Bytes, Response, deflate, header};

const DOCUMENT: &str = include_str!("openapi.json");

static DEFLATED: LazyLock<Bytes> = LazyLock::new(|| deflate(DOCUMENT.as_bytes()).into());

/// The document. Pages of other sites may read it, because viewers are such pages.
pub(super) fn document() -> Response {
    Response::bytes(200, "application/json", DOCUMENT)
        .with_deflated(DEFLATED.clone())
        .with_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*")
        .with_header(header::CACHE_CONTROL, "no-cache")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::routes::table;
    use super::DOCUMENT;

    const METHODS: [&str; 4] = ["get", "post", "patch", "delete"];

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    /// Every operation: its path, the path's description, its method and its own description.
    fn operations(document: &Value) -> Vec<(&String, &Value, &String, &Value)> {
        let paths = document["paths"].as_object().unwrap();
        let mut all = Vec::new();
        for (path, item) in paths {
            let members = item.as_object().unwrap().iter();
            let methods = members.filter(|(name, _)| METHODS.contains(&name.as_str()));
            all.extend(methods.map(|(method, operation)| (path, item, method, operation)));
        }
        all
    }

    /// The names of the parameters in a path.
    fn names(path: &str) -> BTreeSet<&str> {
        path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect()
    }

    #[test]
    fn it_describes_exactly_the_routes() {
        let document = document();
        let described: BTreeSet<(String, String)> = operations(&document)
            .into_iter()
            .flat_map(|(path, item, method, _)| {
                // What is below every instance is twice in the table of routes.
                let bases: &[&str] =
                    if item.get("servers").is_some() { &[""] } else { &["", "/instances/{instance}"] };
                bases.iter().map(move |base| (method.to_uppercase(), format!("{base}{path}")))
            })
            .collect();
        let named = |part: &str| match part.strip_prefix(':') {
            Some(name) => format!("{{{name}}}"),
            None => part.to_owned(),
        };
        let served: BTreeSet<(String, String)> = table()
            .into_iter()
            .map(|(method, pattern, _)| {
                (method.to_string(), pattern.split('/').map(named).collect::<Vec<_>>().join("/"))
            })
            .collect();
        let missing: Vec<_> = served.difference(&described).collect();
        let gone: Vec<_> = described.difference(&served).collect();
        assert!(missing.is_empty() && gone.is_empty(), "not described: {missing:?}; not served: {gone:?}");
    }

    #[test]
    fn every_operation_is_described() {
        let document = document();
        let mut ids = BTreeSet::new();
        for (path, item, method, operation) in operations(&document) {
            let what = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{what}: not the only one");
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{what}");
            assert!(operation["responses"].as_object().unwrap().len() > 1, "{what}");
            let has_body = ["post", "patch"].contains(&method.as_str());
            assert_eq!(operation.get("requestBody").is_some(), has_body, "{what}");
            let is_closed =
                path.starts_with("/private") || path.starts_with("/management") || path == "/webui/qr";
            assert_eq!(operation.get("security").is_some(), is_closed, "{what}");
            let declared: BTreeSet<&str> = item["parameters"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            assert_eq!(declared, names(path), "{what}");
        }
    }

    /// Calls `visit` with every reference of a document.
    fn references<'a>(value: &'a Value, visit: &mut impl FnMut(&'a str)) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    visit(reference);
                }
                members.values().for_each(|member| references(member, visit));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, visit)),
            _ => {}
        }
    }

    #[test]
    fn references_lead_somewhere_and_every_type_is_used() {
        let document = document();
        let mut used = BTreeSet::new();
        references(&document, &mut |reference| {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            used.insert(pointer.to_owned());
        });
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            assert!(used.contains(&format!("/components/schemas/{name}")), "nothing uses {name}");
        }
    }
}
