"""What a client may ask for before it has said who it is, on a listener that requires that and on one that does not."""

import pytest

from ottla.broker.channel import Channel
from ottla.broker.client_identity import ANONYMOUS, Address, Identity, Principal
from ottla.broker.requests import RequestRefusedError
from ottla.broker.security.sasl import PasswordGiven, PlainExchange
from ottla.broker.security.scram import AuthenticationError
from ottla.broker.served import ADVERTISED
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from ottla.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from ottla.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.wire import Message
from tests.harness.node_stage import NodeStage

ADA = Principal("User", "ada")


def channel_of(security_protocol: str) -> Channel:
    return Channel(Identity(Address(1, "127.0.0.1", listener="CLIENT", security_protocol=security_protocol)))


def error_of(stage: NodeStage, channel: Channel, message: Message) -> int:
    frame = encode_request(RequestHeader(message.API_KEY, message.MAX_VERSION, 7, "t"), message)
    answer = stage.node.receive(stage.now, channel, memoryview(frame)[4:])
    assert isinstance(answer, list)
    assert isinstance(answer[0], bytes | bytearray)
    _, response = decode_response(message.API_KEY, message.MAX_VERSION, memoryview(answer[0])[4:])
    return response.error_code


@pytest.mark.parametrize("security_protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_all_but_the_way_to_authenticate_is_refused(stage: NodeStage, security_protocol: str) -> None:
    channel = channel_of(security_protocol)
    before = {key for key, spec in ADVERTISED.items() if spec.before_authentication}
    assert before == {ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE}
    for api_key in ADVERTISED.keys() - before:
        with pytest.raises(RequestRefusedError, match="during SASL handshake"):
            stage.node.receive(stage.now, channel, memoryview(bytearray(api_key.to_bytes(2, "big") + bytes(8))))
    assert error_of(stage, channel, ApiVersionsRequest("t", "1")) == 0


def test_everything_is_let_through_once_the_client_has_authenticated(stage: NodeStage) -> None:
    channel = channel_of("SASL_SSL")
    with pytest.raises(RequestRefusedError):
        error_of(stage, channel, MetadataRequest())
    channel.authenticate(ADA, "PLAIN")
    assert error_of(stage, channel, MetadataRequest()) == 0


@pytest.mark.parametrize("security_protocol", ["PLAINTEXT", "SSL"])
def test_other_listeners_ask_nobody_who_they_are(stage: NodeStage, security_protocol: str) -> None:
    channel = channel_of(security_protocol)
    assert error_of(stage, channel, MetadataRequest()) == 0
    assert channel.identity.principal == ANONYMOUS


@pytest.mark.parametrize("message", [SaslHandshakeRequest("PLAIN"), SaslAuthenticateRequest(b"token")])
def test_who_need_not_authenticate_can_not(stage: NodeStage, message: Message) -> None:
    for security_protocol in ("PLAINTEXT", "SSL"):
        assert error_of(stage, channel_of(security_protocol), message) == ErrorCode.ILLEGAL_SASL_STATE


TOKEN_REQUESTS = [
    CreateDelegationTokenRequest(),
    RenewDelegationTokenRequest(),
    ExpireDelegationTokenRequest(),
    DescribeDelegationTokenRequest(),
]


@pytest.mark.parametrize("message", TOKEN_REQUESTS)
def test_tokens_are_for_those_who_say_who_they_are(stage: NodeStage, message: Message) -> None:
    for security_protocol in ("PLAINTEXT", "SSL"):
        error = error_of(stage, channel_of(security_protocol), message)
        assert error == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    channel = channel_of("SASL_SSL")
    channel.authenticate(ADA, "PLAIN")
    assert error_of(stage, channel, message) == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_a_renewer_of_a_token_is_a_user(stage: NodeStage) -> None:
    message = CreateDelegationTokenRequest(renewers=[CreatableRenewers("Group", "operators")])
    channel = channel_of("SASL_SSL")
    channel.authenticate(ADA, "PLAIN")
    assert error_of(stage, channel, message) == ErrorCode.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize(
    "token",
    [b"", b"ada\0p", b"root\0ada\0p", b"\0\0p", b"\0ada\0", b"\0\xff\0p", b"\0ada\0p\0", b"\0\0", b"\0" * 500_000],
)
def test_a_token_of_plain_is_checked_before_its_password(token: bytes) -> None:
    """Its parts, and that nobody acts as another user (CVE-2017-12610)."""
    with pytest.raises(AuthenticationError):
        PlainExchange().respond(token)
    for right in (b"\0ada\0p", b"ada\0ada\0p"):
        with pytest.raises(PasswordGiven) as given:
            PlainExchange().respond(right)
        assert (given.value.user, given.value.password) == ("ada", b"p")
