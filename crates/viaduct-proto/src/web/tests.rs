//! Requests as browsers and curl send them, and their responses.

use proptest::prelude::*;

use super::*;

const SIZE: u64 = 1000;
/// Sun, 06 Nov 1994 08:49:37 GMT.
const FILE: Found = Found::File { size: SIZE, modified: 784_111_777, nanos: 5 };

fn request(line: &str, headers: &str) -> Request {
    let text = format!("{line} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    let (request, length) = Request::parse(text.as_bytes()).unwrap().unwrap();
    assert_eq!(length, text.len());
    request
}

fn get(headers: &str) -> Plan {
    plan(&request("GET /a/b.html", headers), &FILE)
}

fn head(plan: &Plan) -> &str {
    std::str::from_utf8(&plan.head).unwrap()
}

#[test]
fn a_file_is_sent_completely_with_its_type_and_validators() {
    let plan = get("");
    assert_eq!((plan.status, &plan.body), (200, &Body::File(0..SIZE)));
    for line in [
        "HTTP/1.1 200 OK\r\n",
        "Content-Type: text/html; charset=utf-8\r\n",
        "Content-Length: 1000\r\n",
        "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
        "Accept-Ranges: bytes\r\n",
        "Connection: keep-alive\r\n",
    ] {
        assert!(head(&plan).contains(line), "{line} in {}", head(&plan));
    }
    assert!(head(&plan).ends_with("\r\n\r\n"));
}

#[test]
fn head_is_get_without_its_body() {
    let [get, head] =
        ["GET", "HEAD"].map(|method| plan(&request(&format!("{method} /b.html"), ""), &FILE));
    assert_eq!(get.head, head.head);
    assert_eq!(head.len(), head.head.len() as u64);
}

#[test]
fn ranges_are_partial_content_or_not_satisfiable() {
    let part = get("Range: bytes=100-199\r\n");
    assert_eq!((part.status, &part.body), (206, &Body::File(100..200)));
    assert!(head(&part).contains("Content-Range: bytes 100-199/1000\r\n"));
    assert!(head(&part).contains("Content-Length: 100\r\n"));
    let none = get("Range: bytes=1000-\r\n");
    assert_eq!(none.status, 416);
    assert!(head(&none).contains("Content-Range: bytes */1000\r\n"));
    let tag = FILE.tag().unwrap();
    assert_eq!(get(&format!("Range: bytes=0-1\r\nIf-Range: {tag}\r\n")).status, 206);
    assert_eq!(get("Range: bytes=0-1\r\nIf-Range: \"other\"\r\n").status, 200);
}

#[test]
fn what_the_client_has_is_not_sent_again() {
    let tag = FILE.tag().unwrap();
    for known in [
        format!("If-None-Match: {tag}\r\n"),
        format!("If-None-Match: \"x\", W/{tag}\r\n"),
        "If-None-Match: *\r\n".to_owned(),
        "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n".to_owned(),
    ] {
        let plan = get(&known);
        assert_eq!((plan.status, plan.len()), (304, plan.head.len() as u64), "{known}");
        assert!(head(&plan).contains(&tag) && !head(&plan).contains("Content-Length"));
    }
    for other in [
        "If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\n",
        "If-Modified-Since: yesterday\r\n",
        "If-None-Match: \"x\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
        "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
    ] {
        assert_eq!(get(other).status, 200, "{other}");
    }
    assert_eq!(get("If-Match: \"x\"\r\n").status, 412);
    assert_eq!(get(&format!("If-Match: W/{tag}\r\n")).status, 412, "weak is not enough");
    assert_eq!(get("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\n").status, 412);
}

#[test]
fn directories_have_a_page_and_a_slash() {
    let names = |path: &str| {
        let path: Vec<_> =
            path.split_terminator('/').map(|part| part.as_bytes().to_vec()).collect();
        let names = vec![b"b<c>.txt".to_vec(), b"a b/".to_vec(), b"caf\xe9".to_vec()];
        Found::Directory(Listing::new(&path, names, false))
    };
    let moved = plan(&request("GET /x%20y/z", ""), &names("x y/z"));
    assert_eq!(moved.status, 301);
    assert!(head(&moved).contains("Location: /x%20y/z/\r\n"));
    let page = plan(&request("GET /x/", ""), &names("x"));
    let Body::Page(listing) = &page.body else { panic!("{page:?}") };
    let text = std::str::from_utf8(listing.page()).unwrap();
    let links = "<li><a href=\"./../\">../</a>\n<li><a href=\"./a%20b/\">a b/</a>\n\
                 <li><a href=\"./b%3Cc%3E.txt\">b&lt;c&gt;.txt</a>\n\
                 <li><a href=\"./caf%E9\">caf\u{fffd}</a>\n";
    assert!(text.contains(links), "{text}");
    assert!(!text.contains("<c>"));
    assert!(text.contains("<h1>/x</h1>") && !text.contains("more names"), "{text}");
    let few = Listing::new(&[], vec![b"a".to_vec(), b"b".to_vec()], true);
    let text = std::str::from_utf8(few.page()).unwrap();
    assert!(text.contains("more names than are listed: 2 are shown"), "{text}");
    assert_eq!(plan(&request("GET /", ""), &names("")).status, 200);
    let none = plan(&request("HEAD /x/", ""), &names("x"));
    assert_eq!((&none.head, none.len()), (&page.head, page.head.len() as u64));
}

#[test]
fn the_redirect_to_a_directory_keeps_the_query() {
    let to = |target: &str| {
        let moved = plan(&request(target, ""), &Found::Directory(Listing::default()));
        assert_eq!(moved.status, 301, "{target}");
        let line = head(&moved).lines().find_map(|line| line.strip_prefix("Location: "));
        line.unwrap().to_owned()
    };
    assert_eq!(to("GET /a%20b?x=1&y=/.?"), "/a%20b/?x=1&y=/.?");
    assert_eq!(to("GET /a?"), "/a/?");
    assert_eq!(to("GET /a?x#y"), "/a/?x");
    assert_eq!(to("GET /a#y?x"), "/a/");
    assert_eq!(to("GET /a?\nX:\u{e9}\""), "/a/?%0AX:%C3%A9\"", "nothing gets into the head");
    assert_eq!(to(&format!("GET /a?{}", "x".repeat(2_000))), "/a/", "a long query is dropped");
}

#[test]
fn the_path_alone_says_whether_a_directory_is_meant() {
    let is = |target: &str| request(&format!("GET {target}"), "").directory;
    assert!(is("/a/") && is("/a/.") && is("/a/?x") && is("/a/.?x") && is("http://h/a/."));
    for file in ["/page.html?next=/.", "/page.html?next=/", "/a#/.", "/a."] {
        assert!(!is(file), "{file}");
    }
}

#[test]
fn hosts_are_required_by_http_1_1_and_must_be_valid() {
    let read = |text: &str| Request::parse(text.as_bytes()).map(|read| read.unwrap().0);
    for (text, wrong) in [
        ("GET / HTTP/1.1\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nAccept: */*\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", true),
        ("GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", false),
        ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", false),
        ("GET / HTTP/1.1\r\nHost: a.example:80\r\n\r\n", false),
        ("GET / HTTP/1.1\r\nHost: [2001:db8::1]:8080\r\n\r\n", false),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: 2001:db8::1\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: [::1]80\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: a/@\r\n\r\n", true),
        ("GET / HTTP/1.0\r\n\r\n", false),
    ] {
        assert_eq!(read(text).err(), wrong.then_some(RequestError::Malformed), "{text}");
    }
}

#[test]
fn empty_lines_before_a_request_are_skipped_and_later_minor_versions_are_accepted() {
    for before in ["", "\r\n", "\r\n\r\n\r\n"] {
        let text = format!("{before}GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        let (read, length) = Request::parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!((read, length), (request("GET /a", ""), text.len()));
        assert_eq!(Request::parse(before.as_bytes()), Ok(None));
    }
    assert_eq!(Request::parse(&b"\r\n".repeat(MAX_HEAD / 2)), Err(RequestError::TooLong));
    let read = |version: &str| {
        let text = format!("GET /a HTTP/{version}\r\nHost: x\r\n\r\n");
        Request::parse(text.as_bytes()).map(|read| read.unwrap().0)
    };
    assert_eq!(read("1.2"), Ok(request("GET /a", "")));
    assert_eq!(read("1.9"), Ok(request("GET /a", "")));
    assert!(!read("1.0").unwrap().keep_alive);
    for other in ["2.0", "0.9", "3", "1.", "1.x", "1.10"] {
        assert_eq!(read(other), Err(RequestError::Version), "{other}");
    }
}

#[test]
fn methods_not_allowed_and_unknown_ones_are_distinguished() {
    let wrong = |method: &str| {
        Request::parse(format!("{method} / HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap_err()
    };
    for known in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"] {
        assert_eq!(wrong(known), RequestError::Method, "{known}");
    }
    for unknown in ["BREW", "get", "M-SEARCH"] {
        assert_eq!(wrong(unknown), RequestError::Unknown, "{unknown}");
    }
    assert_eq!(wrong("G(T"), RequestError::Malformed);
    let refused = Plan::refuse(RequestError::Unknown);
    assert_eq!((refused.status, refused.keep_alive), (501, false));
    assert!(!head(&refused).contains("Allow:"));
}

#[test]
fn missing_files_and_bad_requests_get_their_status() {
    let missing = plan(&request("GET /x", "Connection: close\r\n"), &Found::Nothing);
    assert_eq!((missing.status, missing.keep_alive), (404, false));
    assert_eq!(plan(&request("GET /x", ""), &Found::Forbidden).status, 403);
    assert_eq!(plan(&request("GET /x", ""), &Found::Unavailable).status, 503);
    let wrong = |text: &str| Request::parse(text.as_bytes()).unwrap_err();
    assert_eq!(wrong("POST / HTTP/1.1\r\n\r\n"), RequestError::Method);
    assert_eq!(wrong("GET / HTTP/2.0\r\n\r\n"), RequestError::Version);
    for malformed in [
        "GET /\r\n\r\n",
        "GET  / HTTP/1.1\r\n\r\n",
        "GET /.. HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nbroken\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n Folded: x\r\n\r\n",
    ] {
        assert_eq!(wrong(malformed), RequestError::Malformed, "{malformed}");
    }
    assert_eq!(wrong(&"x".repeat(9000)), RequestError::TooLong);
    let refused = Plan::refuse(RequestError::Method);
    assert_eq!((refused.status, refused.keep_alive), (405, false));
    assert!(head(&refused).contains("Allow: GET, HEAD\r\n"));
    assert_eq!(Request::parse(b"GET / HTTP/1.1\r\nHost: x\r\n"), Ok(None));
    assert!(!request("GET /", "Connection: Close\r\n").keep_alive);
    let both = "Connection: close\r\nConnection: keep-alive\r\n";
    assert!(!request("GET /", both).keep_alive, "close wins (RFC 9112, 9.3)");
}

fn requests() -> impl Strategy<Value = Plan> {
    let line = prop::sample::select(vec!["GET /a.txt", "HEAD /a.txt", "GET /x/"]);
    let range = prop::sample::select(vec!["", "Range: bytes=7-700\r\n", "Range: bytes=2000-\r\n"]);
    (line, range, any::<bool>()).prop_map(|(line, range, file)| {
        let found = if file {
            FILE
        } else {
            Found::Directory(Listing::new(&[b"x".to_vec()], vec![b"a".to_vec(); 50], false))
        };
        plan(&request(line, range), &found)
    })
}

/// Bytes of the response in a range. Each byte of the file is its offset modulo 251.
fn bytes(plan: &Plan, range: std::ops::Range<u64>) -> Vec<u8> {
    let piece = |piece: Piece| match piece {
        Piece::Bytes(bytes) => bytes.to_vec(),
        Piece::File(range) => range.map(|at| (at % 251) as u8).collect(),
    };
    plan.pieces(range).flat_map(piece).collect()
}

proptest! {
    #[test]
    fn any_range_of_a_response_can_be_generated_again(
        plan in requests(),
        a in 0..3000_u64,
        b in 0..3000_u64,
    ) {
        let whole = bytes(&plan, 0..u64::MAX);
        prop_assert_eq!(whole.len() as u64, plan.len());
        let [a, b] = [a.min(b), a.max(b)];
        let cut = |at: u64| at.min(plan.len()) as usize;
        prop_assert_eq!(&bytes(&plan, a..b)[..], &whole[cut(a)..cut(b)]);
    }

    #[test]
    fn reading_never_panics_and_never_leads_out(bytes: Vec<u8>, text in "(GET|HEAD) /[ -~]{0,40} \
        HTTP/1.1\r\nHost: x\r\n([A-Za-z-]{1,9}:[ -~]{0,20}\r\n){0,3}\r\n") {
        let _ = Request::parse(&bytes);
        if let Ok(Some((request, _))) = Request::parse(text.as_bytes()) {
            prop_assert!(request.path.iter().all(|part| part != b".." && !part.contains(&b'/')));
            let _ = plan(&request, &FILE);
        }
    }
}
