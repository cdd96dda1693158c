//! The table of endpoints. Each row stands next to its function: method, path, access, and what `/openapi.json` says.

use std::sync::Arc;

use batzen_http::{Head, Method};
use batzen_service::{Reach, Table};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::access::Access;
use super::openapi::MILLISECONDS;
use super::{Checked, Merchant, Shop};
use crate::urls::DEFAULT;

/// The largest body of requests with little content, in bytes. Clients may write each character of a text as an escape of
/// up to six bytes for each of its own.
pub(super) const SMALL_BODY_BYTES_MAX: usize = 16 << 10;
/// The largest body with texts or planchets, in bytes.
pub(super) const TEXTS_BYTES_MAX: usize = 64 << 10;
/// The largest body with an image, in bytes.
pub(super) const IMAGE_BYTES_MAX: usize = 512 << 10;

/// Prefixes of the path of a shop's endpoint.
pub(super) const BASES: [&str; 2] = ["", "/instances/:instance"];

/// Values of the label `operation`.
pub(super) const OPERATIONS: [&str; 10] =
    ["order", "claim", "pay", "status", "instance", "refund", "other", "stock", "transfer", "tip"];

/// An endpoint's function and access.
pub(super) struct Endpoint {
    pub(crate) name: &'static str,
    pub(crate) access: Option<Access>,
    pub(crate) call: batzen_service::Endpoint<Merchant>,
}

/// An endpoint of its function. With an [`Access`], the function gets the shop and the path's parameter as well.
macro_rules! endpoint {
    ($handler:ident) => {
        $crate::api::table::Endpoint {
            name: stringify!($handler),
            access: None,
            call: batzen_service::endpoint!($handler),
        }
    };
    ($access:ident, $handler:ident) => {
        $crate::api::table::Endpoint {
            name: stringify!($handler),
            access: Some($crate::api::access::Access::$access),
            call: |app, request| {
                Box::pin(async move {
                    let access = $crate::api::access::Access::$access;
                    match $crate::api::table::admit(app, access, request).await {
                        Ok((shop, parameter)) => {
                            $handler(app, request, &shop, &parameter).await.unwrap_or_else(|error| error)
                        }
                        Err(error) => error,
                    }
                })
            },
        }
    };
}
pub(super) use endpoint;

/// The shop that a request is for, if it has the access, and the parameter of its path.
pub(super) async fn admit(app: &Merchant, access: Access, head: &Head) -> Checked<(Arc<Shop>, String)> {
    let shop = app.gate.require(&app.core, access, head).await?;
    Ok((shop, parameter(head).to_owned()))
}

/// The instance that a path names.
pub(super) fn instance(head: &Head) -> &str {
    if head.segment(0) == "instances" { head.segment(1) } else { DEFAULT }
}

/// The parameter of a path beside the instance: an id, or empty.
pub(super) fn parameter(head: &Head) -> &str {
    let base = if head.segment(0) == "instances" { 2 } else { 0 };
    let is_nested = matches!(head.segment(base), "private" | "management");
    head.segment(base + 1 + usize::from(is_nested))
}

/// The types of a document, by name.
pub(super) type Schemas = Vec<(String, RefOr<Schema>)>;

/// Adds a type and those that it consists of to a document. Returns its name.
pub(super) type Describe = fn(&mut Schemas) -> String;

pub(super) fn describe<T: ToSchema>(schemas: &mut Schemas) -> String {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
    T::name().into_owned()
}

/// The content of an answer.
pub(super) enum Content {
    None,
    Json(Describe),
    Text(&'static str),
}

pub(super) struct Row {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// None: the kit answers.
    call: Option<batzen_service::Endpoint<Merchant>>,
    pub(crate) access: Option<Access>,
    reach: Reach,
    /// Whether it is below the base URL of every instance.
    pub(crate) is_of_shops: bool,
    operation: &'static str,
    body_bytes_max: usize,
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    /// Name, JSON schema and description of each parameter of the query.
    pub(crate) query: Vec<(&'static str, &'static str, &'static str)>,
    pub(crate) request: Option<Describe>,
    pub(crate) answers: Vec<(u16, &'static str, Content)>,
}

impl Row {
    /// Adds it to the table, below a base URL.
    pub(super) fn add(self, table: Table<Merchant>, base: &str) -> Table<Merchant> {
        let Some(call) = self.call.filter(|_| base.is_empty() || self.is_of_shops) else { return table };
        let path = format!("{base}{}", self.path);
        table.reaching(self.reach, |table| match self.method {
            Method::GET => table.get(&path, self.operation, call),
            Method::POST => table.post(&path, self.body_bytes_max, self.operation, call),
            Method::PATCH => table.patch(&path, self.body_bytes_max, self.operation, call),
            _ => table.delete(&path, self.body_bytes_max, self.operation, call),
        })
    }

    /// The pages in browsers that may use it. Otherwise everybody's for [`Access::Anyone`], and the back office alone.
    pub(super) fn reaching(&mut self, reach: Reach) -> &mut Self {
        self.reach = reach;
        self
    }

    /// Is below the base URL of every instance.
    pub(crate) fn of_shops(&mut self) -> &mut Self {
        self.is_of_shops = true;
        self
    }

    /// The name under which requests are counted; that of the family otherwise.
    pub(crate) fn counted_as(&mut self, operation: &'static str) -> &mut Self {
        self.operation = operation;
        self
    }

    /// The operation's id in the document; the function's name otherwise.
    pub(super) fn named(&mut self, name: &'static str) -> &mut Self {
        self.name = name;
        self
    }

    /// Can wait for a change.
    pub(super) fn polls(&mut self) -> &mut Self {
        self.query("timeout_ms", MILLISECONDS, "How long to wait for a change before answering.")
    }

    pub(super) fn query(
        &mut self,
        name: &'static str,
        schema: &'static str,
        description: &'static str,
    ) -> &mut Self {
        self.query.push((name, schema, description));
        self
    }

    /// The request's body and its size limit.
    pub(super) fn takes<T: ToSchema>(&mut self, bytes_max: usize) -> &mut Self {
        self.body_bytes_max = bytes_max;
        self.request = Some(describe::<T>);
        self
    }

    /// Answers 200 with a body.
    pub(super) fn gives<T: ToSchema>(&mut self) -> &mut Self {
        self.answers::<T>(200, "Done.")
    }

    /// Answers 204.
    pub(crate) fn gives_nothing(&mut self) -> &mut Self {
        self.answers_empty(204, "Done; no content.")
    }

    pub(super) fn answers<T: ToSchema>(&mut self, status: u16, description: &'static str) -> &mut Self {
        self.answers.push((status, description, Content::Json(describe::<T>)));
        self
    }

    pub(crate) fn answers_empty(&mut self, status: u16, description: &'static str) -> &mut Self {
        self.answers.push((status, description, Content::None));
        self
    }

    pub(crate) fn answers_text(
        &mut self,
        status: u16,
        kind: &'static str,
        description: &'static str,
    ) -> &mut Self {
        self.answers.push((status, description, Content::Text(kind)));
        self
    }
}

/// The rows of a family of endpoints, counted under one name.
pub(super) struct Rows {
    pub(crate) rows: Vec<Row>,
    operation: &'static str,
}

impl Rows {
    pub(super) fn of(operation: &'static str) -> Self {
        Self { rows: Vec::new(), operation }
    }

    pub(super) fn get(&mut self, path: &'static str, endpoint: Endpoint, summary: &'static str) -> &mut Row {
        self.route(Method::GET, path, endpoint, summary)
    }

    pub(super) fn post(&mut self, path: &'static str, endpoint: Endpoint, summary: &'static str) -> &mut Row {
        self.route(Method::POST, path, endpoint, summary)
    }

    pub(super) fn patch(
        &mut self,
        path: &'static str,
        endpoint: Endpoint,
        summary: &'static str,
    ) -> &mut Row {
        self.route(Method::PATCH, path, endpoint, summary)
    }

    pub(super) fn delete(
        &mut self,
        path: &'static str,
        endpoint: Endpoint,
        summary: &'static str,
    ) -> &mut Row {
        self.route(Method::DELETE, path, endpoint, summary)
    }

    /// Describes an endpoint that the kit answers.
    pub(super) fn described(
        &mut self,
        path: &'static str,
        name: &'static str,
        summary: &'static str,
    ) -> &mut Row {
        self.rows.push(Row {
            method: Method::GET,
            path,
            call: None,
            access: None,
            reach: Reach::Own,
            is_of_shops: false,
            operation: self.operation,
            body_bytes_max: SMALL_BODY_BYTES_MAX,
            name,
            summary,
            query: Vec::new(),
            request: None,
            answers: Vec::new(),
        });
        self.rows.last_mut().expect("it was just added")
    }

    fn route(
        &mut self,
        method: Method,
        path: &'static str,
        endpoint: Endpoint,
        summary: &'static str,
    ) -> &mut Row {
        let row = self.described(path, endpoint.name, summary);
        row.method = method;
        row.call = Some(endpoint.call);
        row.access = endpoint.access;
        if endpoint.access == Some(Access::Anyone) {
            row.reach = Reach::Everyone;
        }
        row.is_of_shops = endpoint.access.is_some_and(|access| access != Access::Admin);
        row
    }
}
