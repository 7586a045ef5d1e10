import pytest

from zipflm.serving.errors import Refusal, bad_request


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (503, "server_error"),
    ],
)
def test_a_refusal_has_openai_s_shape(status, kind):
    error = Refusal(status, "why", param="n", code="c").as_dict()
    assert error == {"error": {"message": "why", "type": kind, "param": "n", "code": "c"}}


def test_a_bad_request_names_its_field():
    assert (bad_request("n", "no").status, bad_request("n", "no").param) == (400, "n")
