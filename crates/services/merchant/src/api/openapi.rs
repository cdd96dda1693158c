//! The description of the interface, `/openapi.json`: made of the rows of the table and the types of the bodies.

use std::sync::LazyLock;

use batzen_http::{Bytes, Response, deflate, header};
use batzen_protocol::api::merchant::{ContractTerms, MERCHANT_PROTOCOL_VERSION};
use serde_json::{Map, Value, json};

use super::access::Access;
use super::rows;
use super::table::{Content, Row, Schemas, describe};

/// Schemas of the parameters in queries.
pub(super) const TEXT: &str = r#"{"type":"string"}"#;
pub(super) const INTEGER: &str = r#"{"type":"integer"}"#;
pub(super) const YES_NO: &str = r#"{"type":"string","enum":["yes","no"]}"#;
pub(super) const YES_NO_ALL: &str = r#"{"type":"string","enum":["yes","no","all"],"default":"all"}"#;
pub(super) const LIMIT: &str = r#"{"type":"integer","default":-20,"minimum":-1024,"maximum":1024}"#;
pub(super) const MILLISECONDS: &str = r#"{"type":"integer","minimum":0}"#;

/// The document, plain and compressed.
static DOCUMENT: LazyLock<(Bytes, Bytes)> = LazyLock::new(|| {
    let text = document(&rows()).to_string();
    (text.clone().into(), deflate(text.as_bytes()).into())
});

/// The document. Pages of other sites may read it, because viewers are such pages.
pub(super) fn response() -> Response {
    let (plain, deflated) = &*DOCUMENT;
    Response::bytes(200, "application/json", plain.clone())
        .with_deflated(deflated.clone())
        .with_header(header::CACHE_CONTROL, "no-cache")
}

fn document(rows: &[Row]) -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for row in rows {
        let item = paths.entry(with_braces(row.path)).or_insert_with(|| path_item(row));
        item[row.method.as_str().to_lowercase()] = operation(row, &mut schemas);
    }
    // A type that is only a parameter of others, which these do not add.
    describe::<ContractTerms>(&mut schemas);
    let schemas: Map<String, Value> =
        schemas.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
    let mut document: Value = serde_json::from_str(include_str!("openapi.json")).expect("it is JSON");
    document["info"]["version"] = json!(MERCHANT_PROTOCOL_VERSION);
    document["paths"] = Value::Object(paths);
    document["components"]["schemas"] = Value::Object(schemas);
    document
}

/// A pattern of the table as the document writes it: `:order` is `{order}`.
fn with_braces(pattern: &str) -> String {
    let named = |part: &str| match part.strip_prefix(':') {
        Some(name) => format!("{{{name}}}"),
        None => part.to_owned(),
    };
    pattern.split('/').map(named).collect::<Vec<_>>().join("/")
}

/// The members that all operations of a path share.
fn path_item(row: &Row) -> Value {
    let mut item = json!({});
    if !row.is_of_shops {
        item["servers"] = json!([{ "url": "/", "description": "Only directly below the backend's URL." }]);
    }
    let parameters: Vec<Value> = row
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix(':'))
        .map(|name| {
            let description = match name {
                "id" => "The instance's id.".to_owned(),
                "reserve" => "The reserve's public key.".to_owned(),
                "serial" => "Its serial number.".to_owned(),
                "file" | "part" => "Its name.".to_owned(),
                _ => format!("The {name}'s id."),
            };
            let schema = json!({ "type": "string" });
            json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
        })
        .collect();
    if !parameters.is_empty() {
        item["parameters"] = json!(parameters);
    }
    item
}

fn operation(row: &Row, schemas: &mut Schemas) -> Value {
    let tag = match row.path.split('/').nth(1).unwrap_or_default() {
        "private" => "private",
        "management" => "management",
        "webui" => "back office",
        _ if row.is_of_shops => "wallets",
        _ => "service",
    };
    let mut operation = json!({ "operationId": camel_case(row.name), "summary": row.summary, "tags": [tag], "responses": {} });
    let is_closed = row.access.is_some_and(|access| access != Access::Anyone);
    if is_closed || tag == "management" {
        operation["security"] = json!([{ "token": [] }]);
    }
    let parameters: Vec<Value> = row
        .query
        .iter()
        .map(|(name, schema, description)| {
            let schema: Value = serde_json::from_str(schema).expect("it is JSON");
            json!({ "name": name, "in": "query", "description": description, "schema": schema })
        })
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = row.request {
        operation["requestBody"] = json!({ "required": true, "content": json_content(&body(schemas)) });
    }
    for (status, description, content) in &row.answers {
        let mut response = json!({ "description": description });
        match content {
            Content::None => {}
            Content::Json(body) => response["content"] = json_content(&body(schemas)),
            Content::Text(kind) => response["content"] = json!({ *kind: { "schema": { "type": "string" } } }),
        }
        operation["responses"][status.to_string()] = response;
    }
    operation["responses"]["default"] = json!({ "$ref": "#/components/responses/Error" });
    operation
}

fn json_content(name: &str) -> Value {
    json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{name}") } } })
}

/// `show_order` as `showOrder`.
fn camel_case(name: &str) -> String {
    let mut out = String::new();
    for part in name.split('_') {
        let (first, rest) = part.split_at(usize::from(!out.is_empty()));
        out.push_str(&first.to_uppercase());
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::table;
    use super::DOCUMENT;

    const METHODS: [&str; 4] = ["get", "post", "patch", "delete"];

    fn document() -> Value {
        serde_json::from_slice(&DOCUMENT.0).unwrap()
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
        let served: BTreeSet<(String, String)> = table()
            .listed()
            .iter()
            .map(|(method, pattern, ..)| (method.to_string(), super::with_braces(pattern)))
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
