//! Rows of a route table: dispatch, counting, limits, and the pages that every service has.

use std::sync::Arc;

use batzen_http::{ErrorCode, Handler, Head, Method, Request, Response, Stats, Style};
use batzen_metrics::Page;
use batzen_protocol::limits::NO_BODY_BYTES_MAX;
use batzen_service::dashboard::{COMMON, Layout};
use batzen_service::{Answer, Api, App, Monitor, Readiness, Table, endpoint, path_value};

const OPERATIONS: [&str; 2] = ["order", "other"];
static LAYOUT: Layout = Layout { sections: COMMON, work: &[] };

struct Shop(Monitor);

impl App for Shop {
    fn monitor(&self) -> &Monitor {
        &self.0
    }

    async fn ready(&self) -> Readiness {
        Readiness::new().check("stock", Err::<(), _>("empty"))
    }

    fn write_metrics(&self, page: &mut Page) {
        page.gauge("batzen_shop_articles", "Articles", 7);
    }
}

async fn order(_: &Shop, request: &Request) -> Answer {
    let number: u32 = path_value(request, "number", ErrorCode::GENERIC_PARAMETER_MALFORMED)?;
    Ok(Response::text(200, format!("{}:{number}", request.param("instance"))))
}

fn unrouted(_: &Shop, head: &Head, response: Response) -> Response {
    Response::text(response.status, format!("no such page: {}", head.path))
}

fn table() -> Table<Shop> {
    Table::new(Style::ByPath, &OPERATIONS)
        .with_unrouted(unrouted)
        .monitored("other")
        .get("/orders/:number", "order", endpoint!(order))
        .post("/instances/:instance/orders/:number", 64, "order", endpoint!(order))
}

#[tokio::test]
async fn a_row_dispatches_counts_and_limits() {
    let shop = Arc::new(Shop(Monitor::new("shop", &OPERATIONS, &LAYOUT, Arc::<Stats>::default())));
    let api = Api::new(Arc::clone(&shop), table());
    let ask = async |method, path| {
        let answer = api.handle(Request::local(method, path, "")).await;
        (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
    };
    assert_eq!(ask(Method::GET, "/orders/7").await, (200, ":7".to_owned()));
    assert_eq!(ask(Method::POST, "/instances/a/orders/7").await, (200, "a:7".to_owned()));
    assert_eq!(ask(Method::GET, "/orders/x").await.0, 400);
    assert_eq!(ask(Method::GET, "/ready").await.0, 503);
    assert_eq!(ask(Method::GET, "/").await, (404, "no such page: /".to_owned()));
    let ended = |operation, outcome| shop.monitor().operations().ended(operation, outcome);
    assert_eq!([ended(0, "done"), ended(0, "refused"), ended(1, "overload")], [2, 1, 1]);
    let limit = |method, path| api.admit(&Head::local(method, path)).map(|admitted| admitted.max_body_bytes);
    assert_eq!(limit(Method::GET, "/orders/7").unwrap(), Some(NO_BODY_BYTES_MAX));
    assert_eq!(limit(Method::POST, "/instances/a/orders/7").unwrap(), Some(64));
    assert_eq!(limit(Method::PUT, "/orders/7").unwrap_err().status, 405);
    let page = ask(Method::GET, "/metrics").await.1;
    let at = |name: &str| page.find(name).unwrap_or_else(|| panic!("{name} is not in {page}"));
    assert!(at("batzen_shop_articles 7") < at("batzen_http_"), "{page}");
}

#[tokio::test]
async fn requests_without_an_endpoint_are_read_and_counted_if_the_table_says_so() {
    let shop = Arc::new(Shop(Monitor::new("shop", &OPERATIONS, &LAYOUT, Arc::<Stats>::default())));
    let api = Api::new(Arc::clone(&shop), table().reading_unrouted("other"));
    let admitted = api.admit(&Head::local(Method::POST, "/nowhere")).unwrap();
    assert_eq!(admitted.max_body_bytes, None);
    assert_eq!(shop.monitor().operations().ended(1, "refused"), 0, "it is counted once, with its answer");
    assert_eq!(api.handle(Request::local(Method::POST, "/nowhere", "x")).await.status, 404);
    assert_eq!(shop.monitor().operations().ended(1, "refused"), 1);
}

#[test]
#[should_panic(expected = "no operation is called oder")]
fn a_row_with_an_unknown_operation_is_found_at_the_start() {
    let _ = table().get("/other", "oder", endpoint!(order));
}
