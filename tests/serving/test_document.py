from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "serving.md"


def test_docs_page_has_every_path(service):
    page = PAGE.read_text(encoding="utf-8")
    for path in service.client.get("/openapi.json").json()["paths"]:
        assert f"{path.replace('{name}', 'NAME')}`" in page, path
