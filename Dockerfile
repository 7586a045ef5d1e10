# Serves runs on a CPU:
# docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs:/runs:ro" zipflm /runs/adp-t
FROM python:3.11-slim
WORKDIR /zipflm
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt \
    --extra-index-url https://download.pytorch.org/whl/cpu '.[serve]'
USER 65534
EXPOSE 8000
ENTRYPOINT ["zipflm", "serve", "--host", "0.0.0.0"]
