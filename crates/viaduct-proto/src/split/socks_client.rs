//! SOCKS5, client side. [`socks`](super::socks) is the server side, and has a drawing of the
//! messages.

use super::Parsed;
use super::socks::{
    ASSOCIATE, CONNECT, Credentials, IPV4, Method, NAME, PASSWORD_VERSION, VERSION, address,
    name_of, put_address,
};
use crate::flow::{Address, Failure};

/// Greeting; offers a password if `password`.
pub fn greeting(password: bool) -> Vec<u8> {
    match password {
        true => vec![VERSION, 2, Method::None as u8, Method::Password as u8],
        false => vec![VERSION, 1, Method::None as u8],
    }
}

/// Parses the server's reply to the greeting; `None` if the server accepts none of the methods.
pub fn choice(bytes: &[u8]) -> Parsed<Option<Method>> {
    match *bytes {
        [] | [VERSION] => Parsed::Short,
        [VERSION, 0, ..] => Parsed::Whole(Some(Method::None), 2),
        [VERSION, 2, ..] => Parsed::Whole(Some(Method::Password), 2),
        [VERSION, _, ..] => Parsed::Whole(None, 2),
        _ => Parsed::Wrong("not SOCKS5"),
    }
}

/// User name and password; `None` if either is empty or has more than 255 bytes.
pub fn credentials(of: &Credentials) -> Option<Vec<u8>> {
    let mut out = vec![PASSWORD_VERSION];
    for text in [&of.name, &of.password] {
        out.push(counted(text)?);
        out.extend(text);
    }
    Some(out)
}

/// Parses the server's reply to a password: true if the password is right. Some servers begin the
/// reply with the version of SOCKS instead of that of the password protocol (RFC 1929). This is
/// accepted, as by other clients.
pub fn verdict(bytes: &[u8]) -> Parsed<bool> {
    match *bytes {
        [] | [PASSWORD_VERSION | VERSION] => Parsed::Short,
        [PASSWORD_VERSION | VERSION, code, ..] => Parsed::Whole(code == 0, 2),
        _ => Parsed::Wrong("an unknown version of the SOCKS password protocol"),
    }
}

/// CONNECT request; `None` for a name that is empty or has more than 255 bytes.
pub fn request(to: &Address) -> Option<Vec<u8>> {
    let mut out = vec![VERSION, CONNECT, 0];
    put_address(&mut out, to)?;
    Some(out)
}

/// Request for a relay of datagrams (UDP ASSOCIATE). The source address of the datagrams is
/// left zero, because it is unknown behind a NAT.
pub fn associate() -> [u8; 10] {
    [VERSION, ASSOCIATE, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

/// Parses the server's reply to a request. The address in the reply is unused for a connection; for
/// UDP ASSOCIATE it is the relay's.
pub fn reply(bytes: &[u8]) -> Parsed<Result<Address, Failure>> {
    let (code, rest) = match *bytes {
        [VERSION, code, 0, ref rest @ ..] => (code, rest),
        [VERSION, _] | [VERSION] | [] => return Parsed::Short,
        [VERSION, ..] => return Parsed::Wrong("a SOCKS answer whose third byte is not 0"),
        _ => return Parsed::Wrong("not SOCKS5"),
    };
    let result = |at| match code {
        0 => Ok(at),
        2 => Err(Failure::Denied),
        5 => Err(Failure::Refused),
        6 => Err(Failure::TimedOut),
        _ => Err(Failure::Unreachable),
    };
    bound(rest).behind(3).map(result)
}

/// Parses the bound address in a reply. An invalid host name is accepted as empty, because for
/// connections the address is unused; only its length matters.
fn bound(bytes: &[u8]) -> Parsed<Address> {
    let [NAME, count, ref rest @ ..] = *bytes else { return address(bytes) };
    let Some((name, port)) = rest.split_at_checked(usize::from(count)) else {
        return Parsed::Short;
    };
    let Some(port) = port.first_chunk() else { return Parsed::Short };
    let at = Address::Name(name_of(name).unwrap_or_default(), u16::from_be_bytes(*port));
    Parsed::Whole(at, 4 + name.len())
}

/// Length as a byte, if it is 1 to 255.
fn counted(bytes: &[u8]) -> Option<u8> {
    u8::try_from(bytes.len()).ok().filter(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::super::socks;
    use super::*;

    #[test]
    fn the_server_understands_the_client_and_the_client_the_server() {
        for password in [false, true] {
            let said = greeting(password);
            let offers = |method| socks::greeting(&said, method);
            assert_eq!(offers(Method::Password), Parsed::Whole(password, said.len()));
            assert_eq!(offers(Method::None), Parsed::Whole(true, said.len()));
        }
        let me = Credentials { name: b"me".to_vec(), password: b"pw!".to_vec() };
        let said = credentials(&me).unwrap();
        assert_eq!(socks::credentials(&said), Parsed::Whole(me, said.len()));
        let ips = ["192.0.2.7:80", "[2001:db8::7]:443"].map(|ip| Address::Ip(ip.parse().unwrap()));
        for to in ips.into_iter().chain([Address::Name("example.org".into(), 7)]) {
            let said = request(&to).unwrap();
            assert_eq!(socks::request(&said), Parsed::Whole(to, said.len()));
        }
        assert_eq!(request(&Address::Name("x".repeat(256), 1)), None);
        let failures = [Failure::Denied, Failure::Unreachable, Failure::Refused, Failure::TimedOut];
        for result in failures.map(Err).into_iter().chain([Ok(())]) {
            let nowhere = Address::Ip("0.0.0.0:0".parse().unwrap());
            assert_eq!(reply(&socks::reply(result)), Parsed::Whole(result.map(|()| nowhere), 10));
        }
        assert_eq!(verdict(&socks::verdict(false)), Parsed::Whole(false, 2));
        assert_eq!(verdict(&[VERSION]), Parsed::Short);
        assert_eq!(verdict(&[VERSION, 0, VERSION]), Parsed::Whole(true, 2));
        assert_eq!(verdict(&[VERSION, 1]), Parsed::Whole(false, 2));
        assert!(matches!(verdict(&[2, 0]), Parsed::Wrong(_)));
        assert_eq!(choice(&socks::choice(None)), Parsed::Whole(None, 2));
    }

    #[test]
    fn answers_may_be_cut_anywhere_and_name_a_host() {
        let answer = b"\x05\x00\x00\x03\x02ab\x00\x50";
        for cut in 0..answer.len() {
            assert_eq!(reply(&answer[..cut]), Parsed::Short);
        }
        let at = Address::Name("ab".into(), 80);
        assert_eq!(reply(answer), Parsed::Whole(Ok(at), answer.len()));
        assert!(matches!(reply(b"\x05\x00\x00\x09"), Parsed::Wrong(_)));
        assert!(matches!(choice(b"HT"), Parsed::Wrong(_)));
    }
}
